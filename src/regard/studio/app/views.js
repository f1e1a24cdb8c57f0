// The views of the studio, in the order of the navigation. A view is an ES module that exports `view`, listed here;
// page/frame.js says what it has and what it is given.

import { view as beam } from "./page/beam_view.js";
import { view as compare } from "./page/compare_view.js";
import { view as type } from "./page/type_view.js";
import { view as data } from "./data_view.js";
import { view as heads } from "./heads_view.js";
import { view as long } from "./long_view.js";
import { view as runs } from "./runs_view.js";

export const views = [type, beam, compare, heads, data, runs, long];
