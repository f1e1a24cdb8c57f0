"""Defaults of arguments that occur in several places: the same ones in each, whatever object is called."""

import ast
import inspect
import pkgutil
from importlib import import_module
from pathlib import Path

import regard

SOURCE = Path(regard.__file__).parent


def classes() -> dict[str, type]:
    """Those of all modules whose extras are installed."""
    found = {}
    for module in pkgutil.walk_packages([str(SOURCE)], "regard."):
        if module.name.endswith(("_triton", "__main__")):
            continue
        try:
            members = vars(import_module(module.name))
        except ImportError:
            continue  # of an extra
        found |= {
            f"{module.name}.{name}": each
            for name, each in members.items()
            if inspect.isclass(each) and each.__module__ == module.name
        }
    return found


def defaults(function: object) -> dict[str, object]:
    """The arguments that have one. Decorators of the tests, which check types, are taken off."""
    parameters = inspect.signature(inspect.unwrap(function)).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def test_a_method_has_the_defaults_of_the_one_that_it_overrides():
    different, compared = [], 0
    for where, cls in classes().items():
        for name, own in vars(cls).items():
            if not inspect.isfunction(own) or name == "__init__":
                continue
            bases = (base for base in cls.__mro__[1:] if base.__module__.startswith("regard"))
            overridden = next((vars(base)[name] for base in bases if name in vars(base)), None)
            if not inspect.isfunction(overridden):
                continue
            wanted, got = defaults(overridden), defaults(own)
            compared += len(wanted)
            different += [
                f"{where}.{name}: wanted {argument} = {value!r}; got {got.get(argument, 'none')!r}"
                for argument, value in wanted.items()
                if argument in got and got[argument] != value
            ]
    assert different == []
    assert compared > 30


def test_paths_of_a_recipe_are_trusted_where_that_is_asked_for_only():
    """They could name any file of this machine."""
    trusted, count = [], 0
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args][::-1]
                given = [*zip(arguments, node.args.defaults[::-1], strict=False)]
                given += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                for argument, default in given:
                    if argument.arg.startswith("trust") and default is not None:
                        count += 1
                        if ast.unparse(default) not in ("False", "None", "()"):
                            trusted.append(f"{path}:{node.lineno} {argument.arg}")
    assert trusted == []
    assert count > 10
