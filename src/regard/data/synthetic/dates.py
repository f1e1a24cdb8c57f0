"""Dates as they are written in several languages, and in ISO 8601."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta

from regard.data.example import Example, Split
from regard.data.synthetic.sampling import distinct, uniform

FIRST = date(1900, 1, 1)
DAYS = (date(2100, 1, 1) - date(1900, 1, 1)).days


@dataclass(frozen=True)
class Language:
    """Month and weekday names, and date formats of {d}ay, {m}onth, {y}ear,
    {w}eekday and {o}rdinal.
    """

    months: str
    weekdays: str  # Monday first
    forms: tuple[str, ...]
    ordinal: Callable[[int], str] = str

    def write(self, day: date, form: str) -> str:
        month = self.months.split()[day.month - 1] if self.months else ""
        return form.format(
            d=day.day, dd=f"{day.day:02}", o=self.ordinal(day.day), y=day.year,
            m=month, m3=month[:3], nm=day.month, mm=f"{day.month:02}",
            w=self.weekdays.split()[day.weekday()] if self.weekdays else "",
        )  # fmt: skip


def _english(day: int) -> str:
    ending = "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"


# A month is a number only where the order is unambiguous (year first)
# or a word names the convention.
LANGUAGES = (
    Language(
        "January February March April May June July August September October November December",
        "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
        ("{m} {d}, {y}", "{d} {m} {y}", "{m} {o}, {y}", "the {o} of {m} {y}", "{w}, {m} {d}, {y}", "{w} {d} {m} {y}",
         "{m3} {d}, {y}", "{d}-{m3}-{y}", "{y} {m3} {d}", "US {nm}/{d}/{y}", "UK {d}/{nm}/{y}"),
        _english,
    ),
    Language(
        "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
        "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag",
        ("{d}. {m} {y}", "der {d}. {m} {y}", "{w}, {d}. {m} {y}", "{w}, den {d}. {m} {y}", "am {d}. {m} {y}",
         "{d}.{nm}.{y}", "{dd}.{mm}.{y}"),
    ),
    Language(
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
        "lundi mardi mercredi jeudi vendredi samedi dimanche",
        ("{o} {m} {y}", "le {o} {m} {y}", "{w} {o} {m} {y}", "le {w} {o} {m} {y}", "le {dd}/{mm}/{y}"),
        lambda day: "1er" if day == 1 else str(day),
    ),
    Language(
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
        "lunes martes miércoles jueves viernes sábado domingo",
        ("{d} de {m} de {y}", "el {d} de {m} de {y}", "{w}, {d} de {m} de {y}", "el {w} {d} de {m} de {y}",
         "el {d}/{nm}/{y}"),
    ),
    Language(
        "gennaio febbraio marzo aprile maggio giugno luglio agosto "
        "settembre ottobre novembre dicembre",
        "lunedì martedì mercoledì giovedì venerdì sabato domenica",
        ("{o} {m} {y}", "{w} {o} {m} {y}", "{w}, {o} {m} {y}"),
        lambda day: "1º" if day == 1 else str(day),
    ),
    Language(
        "januari februari maart april mei juni juli augustus september oktober november december",
        "maandag dinsdag woensdag donderdag vrijdag zaterdag zondag",
        ("{d} {m} {y}", "op {d} {m} {y}", "{w} {d} {m} {y}", "op {w} {d} {m} {y}", "op {dd}-{mm}-{y}"),
    ),
    Language("", "", ("{y}-{mm}-{dd}", "{y}/{mm}/{dd}", "{y}.{nm}.{d}", "{y}{mm}{dd}", "{y}年{nm}月{d}日")),
)  # fmt: skip


def dates(split: Split, seed: int = 0, size: int | None = None) -> Iterator[Example]:
    """A date in one of many formats, and in ISO 8601. No date is in two splits.

    >>> next(dates("train"))
    Example(source='le 18/10/1988', target='1988-10-18')
    """
    random = uniform("dates", split, seed)

    def draw() -> Example:
        day = FIRST + timedelta(days=int(random() * DAYS))
        language = LANGUAGES[int(random() * len(LANGUAGES))]
        written = language.write(day, language.forms[int(random() * len(language.forms))])
        return Example(written.lower() if random() < 0.25 else written, day.isoformat())

    return distinct(draw, lambda example: example.target, split, size)
