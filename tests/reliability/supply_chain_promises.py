"""Supply chain: C1 to C8."""

from reliability.promise import rows

PACKAGE = "test_package.py"

SUPPLY_CHAIN = rows({
    "C1": (
        "The source has no pickle, no unrestricted torch.load, and no eval, exec or yaml.load",
        f"{PACKAGE}::test_no_source_unpickles_or_evaluates",
    ),
    "C2": (
        "Every byte of a checkpoint is checked against its manifest whenever it is loaded",
        "checkpoint/test_store.py::test_every_flipped_bit_is_detected",
        "cli/test_cli.py::test_verify_finds_damage",
    ),
    "C3": (
        "No configuration can name code: no checkpoint or recipe causes an import",
        "reliability/test_untrusted_checkpoints.py::test_a_configuration_names_no_code",
        "recipe/test_load.py::test_a_recipe_names_the_extensions_it_needs",
    ),
    "C4": (
        "Every required package is pinned, and its file is checked by hash when it is installed",
        f"{PACKAGE}::test_every_needed_package_is_pinned",
        "release/test_lock.py::test_every_pinned_package_is_locked_with_its_hashes",
        "release/test_lock.py::test_make_installs_all_but_torch_by_hash",
        "release/test_lock.py::test_pip_refuses_another_file_than_the_locked_one",
    ),
    "C5": (
        "The wheel contains the files of the package, of listed types, and nothing else",
        f"{PACKAGE}::test_the_files_of_the_package_are_of_listed_kinds",
        "release/test_wheel.py::test_the_wheel_holds_the_files_of_the_package_and_nothing_else",
    ),
    "C6": (
        "By default a server accepts connections from this machine only",
        "reliability/test_default_address.py::test_a_server_binds_to_the_loopback_address_alone",
    ),
    "C7": ("No test reaches another machine", f"{PACKAGE}::test_no_test_reaches_another_machine"),
    "C8": (
        "The HTML pages load nothing from other servers",
        "views/test_figures.py::test_a_page_is_one_file_with_a_strict_policy",
        "studio/test_studio.py::test_the_page_has_a_strict_policy_and_nothing_from_elsewhere",
        "serving/test_openapi.py::test_the_page_has_a_strict_policy_and_nothing_from_elsewhere",
    ),
})  # fmt: skip
