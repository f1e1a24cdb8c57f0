"""A page driven by the keyboard alone: wherever Tab leads, the focus is visible and the control has a name."""

import re

MOST = 400  # presses of Tab until a control must have the focus
# What has the focus: whether it matches, and what is wrong with it.
FOCUSED = """(selector) => {
  const at = document.activeElement;
  if (!at || at === document.body) return { found: false, name: "the page", problem: null };
  const box = at.getBoundingClientRect();
  const style = getComputedStyle(at);
  const labelled = at.getAttribute("aria-labelledby");
  const text = at.getAttribute("aria-label") || (labelled && document.getElementById(labelled)?.textContent) ||
    at.labels?.[0]?.textContent || at.textContent;
  const name = `${at.localName}#${at.id} ${text.trim().slice(0, 60)}`;
  const problem = !text.trim() ? "no name" : box.width < 1 || box.height < 1 ? "not visible"
    : at.matches(":focus-visible") && style.outlineStyle === "none" && at.localName !== "main" ? "no outline" : null;
  return { found: at.matches(selector), name, problem };
}"""


class Keyboard:
    """Presses keys, and never points or gives the focus by a script."""

    def __init__(self, page: object) -> None:
        self.page = page

    def focused(self, selector: str = "*") -> dict:
        return self.page.evaluate(FOCUSED, selector)

    def check_focus(self, selector: str) -> None:
        """The focus is on such a control: where a key was pressed, and not lost."""
        at = self.focused(selector)
        assert at["found"], f"the focus is on {at['name']} and not on {selector}"

    def tab_to(self, selector: str, *, back: bool = False) -> "Keyboard":
        """Press Tab until a control that matches has the focus."""
        seen = []
        for _ in range(MOST):
            at = self.focused(selector)
            seen.append(at["name"])
            assert at["problem"] is None, f"{at['name']}: {at['problem']}"
            if at["found"]:
                return self
            self.page.keyboard.press("Shift+Tab" if back else "Tab")
        raise AssertionError(f"Tab does not lead to {selector}, but to {seen[:80]}")

    def press(self, *keys: str) -> "Keyboard":
        for key in keys:
            self.page.keyboard.press(key)
        return self

    def enter(self, text: str) -> "Keyboard":
        """Replace the text of the field that has the focus."""
        self.page.keyboard.press("Control+a")
        self.page.keyboard.type(text)
        return self

    def choose(self, text: str) -> "Keyboard":
        """Choose an option of the list that has the focus by typing its beginning."""
        options = self.page.evaluate("[...document.activeElement.options].map((each) => each.text)")
        at = self.page.evaluate("document.activeElement.selectedIndex")
        wanted = next(i for i, each in enumerate(options) if re.fullmatch(text, each))
        return self.press(*["ArrowDown" if wanted > at else "ArrowUp"] * abs(wanted - at))
