// The views of the studio, in the order of the navigation.
//
// A view is added in two steps: write an ES module in this folder that exports `view`, and list it below. `view` has
//
//   route   its name in the address: #/route?key=value
//   title   its name in the navigation
//   show(box, studio)   fills an empty element, and returns {
//       update(parameters)   is called when the address has changed, for example by the browser's Back
//       close()              is called before another view is shown; may be left out
//   }
//
// and `studio` gives it
//
//   models          [{name, version, reads, labels, generates, examples}], as /studio/models sends them
//   model           the one that is chosen in the bar
//   parameters      the keys and values of the address, all strings: all state that a link must keep belongs there
//   go(changes, {route, replace, silent})   changes some of them (null removes one), and with `route` shows another
//                   view; with `replace` the browser's history gets no new entry; with `silent` the view, which has
//                   changed already, is not updated either
//   link(changes, route)   the address that `go` would lead to, for the href of an <a>
//   ask(path, body, signal)   the JSON of an answer of the server, a POST where there is a body; raises `Refused`
//   bytes(path, signal)   the bytes of an answer
//   fail(error)     shows an error in the page; fail(null) hides it
//   announce(text)  tells it to a screen reader
//
// Only text ever goes into the page: elements are made with `make` (page/state.js), never from markup. The script and
// style policies forbid inline code; styles belong into studio.css, which uses the variables of page/page.css.

import { view as beam } from "./beam_view.js";
import { view as compare } from "./compare_view.js";
import { view as data } from "./data_view.js";
import { view as heads } from "./heads_view.js";
import { view as long } from "./long_view.js";
import { view as runs } from "./runs_view.js";
import { view as type } from "./type_view.js";

export const views = [type, beam, compare, heads, data, runs, long];
