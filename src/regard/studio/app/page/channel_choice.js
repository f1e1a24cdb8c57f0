// Which channel's attention is shown, of a model that reads each channel apart. The choice is a key of the address.

import { make } from "./state.js";

// The channel of the address as a request has it: its number from 1.
export function channelOption({ channel }) {
  const number = Number.parseInt(channel, 10);
  return number > 0 ? { channel: number } : {};
}

// A list of the channels, which is hidden until a look has some.
export function showChannels(studio) {
  const choice = make("select", { id: "channel" });
  const element = make("p", { className: "line", hidden: true }, make("label", {}, "Attention of channel ", choice));
  choice.addEventListener("change", () => studio.go({ channel: choice.value === "1" ? null : choice.value }));
  function draw(look) {
    const source = look.sources.find((each) => each.separate);
    element.hidden = !source;
    if (!source) return;
    const names = source.channels.slice(0, source.separate);
    choice.replaceChildren(...names.map((name, i) => new Option(name, String(i + 1))));
    choice.value = String(source.channel);
  }
  return { element, draw };
}
