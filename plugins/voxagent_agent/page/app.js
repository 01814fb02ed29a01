// The page of the voice agent: puts the call, the microphone, the captions and the pictures together.

import { Call, configuration } from "./call.js";
import { Captions } from "./captions.js";
import { Figures } from "./figures.js";
import { Level, Microphone } from "./microphone.js";
import { Timeline } from "./timeline.js";
import { Trouble, insecureOrigin, silentPlayer } from "./words.js";

const PHASES = {
  idle: "Ready",
  asking: "Asking for the microphone",
  connecting: "Connecting",
  live: "Connected",
  listening: "Agent listens",
  thinking: "Agent thinks",
  speaking: "Agent speaks",
  paused: "Agent pauses for you",
  reconnecting: "Connection lost, reconnecting",
  ended: "Call ended",
};
const AGENT_STATES = ["listening", "thinking", "speaking", "paused"];
const FRAME_MS = 33;
const CALM_FRAME_MS = 500;
const NOTICED_MS = 1500;

const find = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const captions = new Captions(find("log"), find("announcer"));
const figures = new Figures(find);
const timeline = new Timeline(find("timeline"));
const microphone = new Microphone((trouble) => showTrouble(trouble));
// What tests look at.
const seen = (window.voxagent = { state: "idle", messages: 0, events: {}, levels: { mic: 0, bot: 0 } });

let call = null;
let attempt = null;
let callName = null;
let sound = null;
let levels = { mic: null, bot: null };
let startedMs = null;

function showPhase(phase) {
  seen.state = phase;
  find("phase").textContent = PHASES[phase];
  find("dot").dataset.state = phase;
  const busy = attempt !== null;
  find("call").textContent = busy ? "Hang up" : "Start call";
  find("call").classList.toggle("hang-up", busy);
  find("mute").disabled = !busy;
}

function showTrouble(trouble) {
  find("trouble").hidden = !trouble;
  find("trouble-title").textContent = trouble?.message ?? "";
  find("trouble-cure").textContent = trouble?.cure ?? "";
}

function showConfiguration({ name, calls, limit }) {
  if (name) showName(name);
  showCapacity({ calls, limit });
}

function showCapacity({ calls, limit }) {
  find("capacity").textContent = limit ? `${calls} of ${limit} calls` : "";
}

/** How many calls there are now; not worth a complaint when it cannot be told. */
function refresh() {
  configuration().then(showCapacity, () => {});
}

function showName(name) {
  const plain = name === "voxagent";
  find("name").textContent = name;
  find("product").hidden = plain;
  document.title = plain ? name : `${name} – voxagent`;
}

function mute(muted) {
  microphone.mute(muted);
  find("mute").setAttribute("aria-pressed", String(muted));
  find("mute").textContent = muted ? "Unmute" : "Mute";
}

function processing() {
  const boxes = find("processing").querySelectorAll("input");
  return Object.fromEntries([...boxes].map(({ name, checked }) => [name, checked]));
}

async function listMicrophones() {
  const devices = await microphone.list();
  if (!devices.length) return;
  const choice = find("microphone");
  const chosen = choice.value;
  choice.replaceChildren(...devices.map(({ label, deviceId }) => new Option(label, deviceId)));
  const used = microphone.stream?.getAudioTracks()[0]?.getSettings().deviceId;
  choice.value = [chosen, used].find((id) => devices.some(({ deviceId }) => deviceId === id)) ?? devices[0].deviceId;
}

function measure(side, stream) {
  levels[side]?.close();
  levels[side] = new Level(sound, stream);
}

/** Rings. A hang-up meanwhile is no failure: whatever comes back then is put away. */
async function startCall() {
  const mine = (attempt = {});
  const gone = () => attempt !== mine;
  showTrouble(null);
  captions.clear();
  figures.clear();
  timeline.clear();
  callName = null;
  try {
    showPhase("asking");
    sound = new AudioContext();
    const stream = await microphone.open(find("microphone").value, processing());
    if (!stream) return;
    measure("mic", stream);
    animate();
    listMicrophones();
    showPhase("connecting");
    const configured = await configuration();
    if (gone()) return;
    showConfiguration(configured);
    call = new Call(stream, configured.ice_servers ?? [], { phase: onPhase, message: onMessage, stream: onStream, network: (n) => figures.network(n) });
    await call.start();
  } catch (error) {
    if (!gone()) endCall(asTrouble(error));
  }
}

function asTrouble(error) {
  return error instanceof Trouble ? error : new Trouble("The call did not come about.", `The browser says: ${error.message}`);
}

function endCall(trouble = null) {
  const wasLive = startedMs !== null;
  call?.hangUp();
  call = attempt = startedMs = null;
  microphone.close();
  mute(false);
  levels = { mic: null, bot: null };
  seen.levels = { mic: 0, bot: 0 };
  showLevel(0);
  find("voice").srcObject = null;
  sound?.close();
  sound = null;
  showTrouble(trouble);
  showPhase(wasLive ? "ended" : "idle");
  // Not at once: the agent must first notice that the call is over.
  setTimeout(refresh, NOTICED_MS);
}

function onPhase(phase, trouble) {
  if (phase === "ended") return endCall(trouble);
  if (phase === "live") {
    startedMs ??= performance.now();
    refresh();
  }
  if (phase === "reconnecting") captions.note("The connection was lost; reconnecting by itself.");
  if (phase === "live" && seen.state === "reconnecting") captions.note("Connected again.");
  // The agent's first words may be quicker than the browser's own report.
  if (phase !== "live" || !AGENT_STATES.includes(seen.state)) showPhase(phase);
}

function onStream(stream) {
  find("voice").srcObject = stream;
  find("voice").play().catch((error) => {
    if (error.name !== "NotAllowedError") return;
    showTrouble(silentPlayer());
    document.addEventListener("click", () => (find("voice").play(), showTrouble(null)), { once: true });
  });
  measure("bot", stream);
}

function onMessage(message) {
  seen.messages += 1;
  seen.events[message.event] = (seen.events[message.event] ?? 0) + 1;
  if (captions.show(message)) return;
  switch (message.event) {
    case "hello":
      if (message.name) showName(message.name);
      if (callName !== message.call) captions.forget();
      callName = message.call;
      break;
    case "state":
      if (!AGENT_STATES.includes(message.state)) break;
      timeline.state(message.state);
      showPhase(message.state);
      break;
    case "user_voice":
      timeline.voice(message.on);
      figures.voice(message.on);
      break;
    case "decision":
      timeline.decision(message.action);
      figures.decision(message);
      break;
    case "latency":
      figures.response(message);
      break;
    case "error":
      showTrouble(new Trouble("The agent reports an error.", String(message.message ?? "")));
      break;
    case "bye":
      captions.note(message.reason ? `The agent hung up: ${message.reason}` : "The agent hung up.");
      endCall();
  }
}

function showLevel(level) {
  const percent = Math.round(level * 100);
  find("level-fill").style.transform = `scaleX(${level})`;
  if (Math.abs(percent - find("level").ariaValueNow) >= 5 || !percent) find("level").ariaValueNow = percent;
}

function showClock() {
  const seconds = startedMs === null ? null : Math.floor((performance.now() - startedMs) / 1000);
  const text = seconds === null ? "" : `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
  if (find("clock").textContent !== text) find("clock").textContent = text;
}

function animate() {
  const mine = attempt;
  let drawnMs = 0;
  const frame = (nowMs) => {
    if (attempt !== mine) return;
    requestAnimationFrame(frame);
    if (nowMs - drawnMs < FRAME_MS) return;
    seen.levels = { mic: microphone.muted ? 0 : (levels.mic?.read() ?? 0), bot: levels.bot?.read() ?? 0 };
    timeline.levels(seen.levels.mic, seen.levels.bot);
    if (calm.matches && nowMs - drawnMs < CALM_FRAME_MS) return;
    drawnMs = nowMs;
    timeline.draw();
    showLevel(seen.levels.mic);
    showClock();
  };
  requestAnimationFrame(frame);
}

async function changeMicrophone() {
  if (!call) return;
  try {
    const stream = await microphone.open(find("microphone").value, processing());
    if (!stream) return;
    measure("mic", stream);
    await call.speakThrough(stream);
    showTrouble(null);
  } catch (error) {
    showTrouble(asTrouble(error));
  }
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (event.key === "Escape" && attempt) return endCall();
  // In a list, letters choose an entry.
  if (event.key.toLowerCase() === "m" && attempt && event.target.tagName !== "SELECT") mute(!microphone.muted);
}

find("call").addEventListener("click", () => (attempt ? endCall() : startCall()));
find("mute").addEventListener("click", () => mute(!microphone.muted));
find("microphone").addEventListener("change", changeMicrophone);
find("processing").addEventListener("change", changeMicrophone);
document.addEventListener("keydown", onKey);
window.addEventListener("pagehide", () => call?.hangUp());
navigator.mediaDevices?.addEventListener("devicechange", listMicrophones);

listMicrophones();
showPhase("idle");
timeline.draw();
if (window.isSecureContext) configuration().then(showConfiguration, (error) => showTrouble(asTrouble(error)));
else showTrouble(insecureOrigin());
