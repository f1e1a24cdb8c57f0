// The vectors of a text that was typed, pasted or read from a file: a list of JSON, or a table with a line for each vector.

const EMPTY = new Set(["", "nan", "null", "none", "na", "n/a"]); // cells without a value
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const SHOWN = 40; // letters of a wrong cell in a message
const LARGEST = 3.4028234663852886e38; // of float32
const MOST_FILLED = 16; // rows with those that are inserted, for each that is given
const PERIODS = { minute: 60, hour: 24, weekday: 7, day: 31, month: 12 };
const TIME = /^(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:[.,](\d+))?)?)?)?(Z|[+-]\d\d:?\d\d)?$/;

const fail = (wanted, got, remedy) => {
  throw new Error(`numbers: wanted ${wanted}; got ${got}. ${remedy}`);
};
const quoted = (value) => JSON.stringify(value ?? null).slice(0, SHOWN);

// The vectors, null where a number is missing, and the names of all series of the text, where it has several.
//
// layout: {
//   size      numbers of a vector
//   missing   whether numbers may be missing
//   window    vectors that the model reads: the last ones of a longer series; null: all
//   series    the table [data.series] of the recipe: {time, group, columns, targets, calendar, gaps}; null: it has none
// }
// group   the name of the series that is read, where there are several
export function readVectors(text, layout, group = null) {
  const trimmed = text.trim();
  const read = trimmed.startsWith("[") ? { vectors: ofJson(trimmed, layout), groups: [] } : ofTable(trimmed, layout, group);
  if (!read.vectors.length) fail("at least one vector", "none", "Give numbers.");
  const cut = layout.window ? read.vectors.slice(-layout.window) : read.vectors;
  return { ...read, vectors: cut };
}

function ofJson(text, { size, missing }) {
  let given;
  try {
    given = JSON.parse(text);
  } catch {
    fail("a list of vectors in JSON", "a text that is no JSON", "Correct its brackets and commas.");
  }
  return checkedVectors(given, { size, missing });
}

// A list of vectors; for vectors of one number, also a list of numbers.
export function checkedVectors(given, { size, missing }) {
  const flat = size === 1 && given.every((each) => !Array.isArray(each));
  const vectors = flat ? given.map((each) => [each]) : given;
  vectors.forEach((vector, i) => {
    if (!Array.isArray(vector) || vector.length !== size) {
      fail(`${size} numbers in vector ${i + 1}, as in the training data`, quoted(vector), "Give vectors of one dimension.");
    }
    vector.forEach((value, number) => checkNumber(value, `as number ${number + 1} of vector ${i + 1}`, missing));
  });
  return vectors;
}

function checkNumber(value, where, missing) {
  if (value === null || Number.isNaN(value)) {
    if (!missing) fail(`a number ${where}`, "none: it is missing", "Fill it in: this model reads no series with missing numbers.");
  } else if (typeof value !== "number" || !(Math.abs(value) <= LARGEST)) {
    fail(`a number ${where}`, quoted(value), "Correct it.");
  }
}

function ofTable(text, layout, group) {
  const lines = text.split(/\r?\n/).map((line, i) => ({ line, number: i + 1 })).filter(({ line }) => line.trim());
  if (!lines.length) return { vectors: [], groups: [], group: null };
  const cut = cellsOf(lines.map(({ line }) => line));
  const rows = lines.map(({ line, number }) => ({ cells: cut(line), number }));
  const isHeader = ({ cells }) => !cells.some(isNumber) && !cells.every(isEmpty);
  const names = rows.length > 1 && isHeader(rows[0]) ? rows.shift().cells : null;
  const columns = columnsOf(names, rows[0]?.cells.length ?? 0, layout);
  const width = names?.length ?? columns.channels.length;
  for (const { cells, number } of rows) {
    if (cells.length === width) continue;
    const wanted = names ? `${width} cells in line ${number}, as in the first line` : `${width} numbers in vector ${number}, as in the training data`;
    fail(wanted, String(cells.length), "Give all lines the same columns.");
  }
  const groups = columns.group === null ? [] : [...new Set(rows.map(({ cells }) => cells[columns.group]))];
  const chosen = groups.includes(group) ? group : groups[0];
  const own = columns.group === null ? rows : rows.filter(({ cells }) => cells[columns.group] === chosen);
  const values = own.map(({ cells, number }) => columns.channels.map(({ place, name }) => numberOf(cells[place], name, number, layout)));
  const clock = columns.time === null ? null : clockOf(own.map(({ cells, number }) => ({ written: cells[columns.time], number })));
  return { vectors: byTime(values, clock, layout), groups: groups.length > 1 ? groups : [], group: chosen ?? null };
}

// What splits a line into cells: the separator that the first line has.
function cellsOf(lines) {
  const [first = ""] = lines;
  const separator = ["\t", ";", ","].find((each) => first.includes(each));
  if (!separator) return (line) => line.trim().split(/\s+/);
  return (line) => {
    const cells = [];
    let [cell, quotes] = ["", false];
    for (const letter of line) {
      if (letter === '"') quotes = !quotes;
      else if (letter === separator && !quotes) {
        cells.push(cell.trim());
        cell = "";
      } else cell += letter;
    }
    return [...cells, cell.trim()];
  };
}

const isNumber = (cell) => NUMBER.test(cell);
const isEmpty = (cell) => EMPTY.has(cell.toLowerCase());

// Where the channels are, those that are forecast first, and the columns of times and of the name of a series.
function columnsOf(names, count, { size, series }) {
  const every = Array.from({ length: count }, (_, place) => ({ place, name: names?.[place] ?? null }));
  const calendar = 2 * (series?.calendar?.length ?? 0);
  const wantsAll = () => `${size} columns of numbers${series?.columns ? ` (${series.columns.join(", ")})` : ""}, as in the training data`;
  if (!series || !names) {
    if (count !== size) fail(names ? wantsAll() : `${size} numbers in vector 1, as in the training data`, String(count), names ? "Leave the other columns out." : "Give vectors of one dimension, or the names of columns in the first line.");
    return { channels: every, time: null, group: null };
  }
  const at = (name) => (name && names.includes(name) ? names.indexOf(name) : null);
  const [time, group] = [at(series.time), at(series.group)];
  const others = every.filter(({ place }) => place !== time && place !== group);
  const wanted = series.columns ?? others.map(({ name }) => name);
  const absent = [...wanted, ...(series.targets ?? [])].filter((name) => !names.includes(name));
  if (absent.length) fail(`a column ${quoted(absent[0])}`, names.join(", "), "Name the columns as in the training data, in the first line.");
  const targets = series.targets ?? wanted;
  const order = [...targets, ...wanted.filter((name) => !targets.includes(name))];
  const channels = order.map((name) => every[names.indexOf(name)]);
  const computed = time === null ? 0 : calendar;
  if (channels.length + computed !== size) {
    if (calendar && time === null) fail(`a column ${quoted(series.time)} of times, of which the model reads the ${series.calendar.join(", ")}`, names.join(", "), "Add it.");
    fail(wantsAll(), `${channels.length}: ${order.join(", ")}`, "Leave the other columns out.");
  }
  return { channels, time, group };
}

function numberOf(cell, name, line, { missing }) {
  const where = `in line ${line}${name === null ? "" : `, column ${quoted(name)}`}`;
  const value = isNumber(cell) ? Number(cell) : isEmpty(cell) ? null : cell;
  checkNumber(value, where, missing);
  return value;
}

// The times of rows, which increase: their seconds, or numbers, the step from one to the next, and the rows after gaps.
function clockOf(rows) {
  const written = rows.map((each) => each.written);
  const plain = written.every(isNumber);
  const dates = plain ? null : rows.map(dateOf);
  const seconds = plain ? written.map(Number) : dates.map(({ second }) => second);
  const steps = seconds.slice(1).map((each, i) => each - seconds[i]);
  const wrong = steps.findIndex((step) => !(step > 0));
  if (wrong >= 0) fail(`in line ${rows[wrong + 1].number} a time after ${written[wrong]}`, quoted(written[wrong + 1]), "Sort the rows of each series by time, and remove repeated ones.");
  const counts = new Map();
  for (const step of [...steps].sort((a, b) => a - b)) counts.set(step, (counts.get(step) ?? 0) + 1);
  const step = [...counts].reduce((best, each) => (each[1] > best[1] ? each : best), [1, 0])[0];
  const gaps = steps.flatMap((each, i) => (each === step ? [] : [i + 1]));
  return { written, dates, seconds, step, gaps, numbers: rows.map((each) => each.number) };
}

function dateOf({ written, number }) {
  const found = TIME.exec(written);
  if (!found) fail(`a time of ISO 8601 in line ${number}, such as 2016-07-01 00:00:00, or a number`, quoted(written), "Write times alike.");
  const [year, month, day, hour, minute, second] = found.slice(1, 7).map((part) => Number(part ?? 0));
  const fraction = Number(`0.${found[7] ?? 0}`);
  const zone = found[8] && found[8] !== "Z" ? (found[8][0] === "-" ? -60 : 60) * (60 * Number(found[8].slice(1, 3)) + Number(found[8].slice(-2))) : 0;
  const utc = Date.UTC(year, month - 1, day, hour, minute, second);
  const weekday = (new Date(utc).getUTCDay() + 6) % 7; // Monday is 0
  return { second: utc / 1000 + fraction - zone, parts: { minute, hour: hour + minute / 60, weekday: weekday + hour / 24, day: day - 1, month: month - 1 } };
}

// The rows by their times, with the channels of the calendar: those after the last gap, or with rows inserted into gaps.
function byTime(values, clock, { series, missing }) {
  if (!clock) return values;
  if (series.calendar?.length && !clock.dates) fail(`dates and times in ${quoted(series.time)}`, "numbers", "Write times of ISO 8601.");
  const angles = (date) => (series.calendar ?? []).map((part) => (2 * Math.PI * date.parts[part]) / PERIODS[part]);
  const added = (i) => (clock.dates ? angles(clock.dates[i]).flatMap((angle) => [Math.sin(angle), Math.cos(angle)]) : []);
  const rows = values.map((row, i) => [...row, ...added(i)]);
  const { gaps, seconds, step, written, numbers } = clock;
  if (!gaps.length || series.gaps === "ignore") return rows;
  if (series.gaps === "split") return rows.slice(gaps.at(-1));
  const unit = clock.dates ? "seconds" : "of time";
  if (series.gaps === "refuse" || !missing) {
    const [at] = gaps;
    fail(`a row every ${step} ${unit}`, `${seconds[at] - seconds[at - 1]} ${unit} from ${written[at - 1]} to ${written[at]}, in line ${numbers[at]}`, "Insert the rows that are missing.");
  }
  const places = seconds.map((each) => (each - seconds[0]) / step);
  const wrong = places.findIndex((place) => Math.abs(place - Math.round(place)) > 1e-6);
  if (wrong >= 0) fail(`times that are multiples of ${step} ${unit} apart`, written[wrong], "Insert the rows that are missing.");
  const count = Math.round(places.at(-1)) + 1;
  if (count > MOST_FILLED * rows.length) fail("gaps that together are at most 15 times as long as the series", `${count - rows.length} missing rows beside ${rows.length}`, "Leave the rows before the gaps out.");
  const calendar = rows[0].length - values[0].length;
  const filled = Array.from({ length: count }, () => [...values[0].map(() => null), ...Array(calendar).fill(0)]);
  places.forEach((place, i) => (filled[Math.round(place)] = rows[i]));
  return filled;
}
