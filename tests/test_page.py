"""The web page in a real browser against a small agent: sound both ways, captions, refusals, reconnecting, access."""

from __future__ import annotations

import asyncio
import contextlib
import re

import numpy as np
import pytest
import pytest_asyncio

for needed in ("playwright.async_api", "aiohttp", "aiortc"):
    pytest.importorskip(needed)

from tests.browser import chromium, write_microphone  # noqa: E402
from tests.page_rig import CALLER_HZ, RATE, Agent, share_at, tone  # noqa: E402

pytestmark = pytest.mark.asyncio(loop_scope="module")


def event(kind, **fields):
    return {"type": "voxagent", "event": kind, **fields}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser(tmp_path_factory):
    wav = write_microphone(tmp_path_factory.mktemp("microphone") / "tone.wav", tone(CALLER_HZ, 2.0), RATE)
    async with chromium(wav) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def agent():
    serving = Agent()
    await serving.start()
    yield serving
    await serving.stop()


@contextlib.asynccontextmanager
async def opened(browser, **options):
    """An empty page; whatever is reported in it as an error fails the test."""
    context = await browser.new_context(**options)
    empty = await context.new_page()
    empty.set_default_timeout(15_000)
    errors = []
    empty.on("pageerror", lambda error: errors.append(str(error)))
    yield empty
    await context.close()
    assert errors == []


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def tab(browser):
    async with opened(browser) as empty:
        yield empty


@pytest_asyncio.fixture(loop_scope="module")
async def page(tab, agent):
    """Loaded anew for each test: a tab of its own costs half a second."""
    await tab.goto(agent.url)
    yield tab
    await tab.unroute_all()


@pytest_asyncio.fixture(loop_scope="module")
async def clocked(browser, agent):
    """A page whose time the test moves."""
    async with opened(browser) as empty:
        await empty.goto(agent.url)
        yield empty


async def in_state(page, state):
    await page.wait_for_function("state => voxagent.state === state", arg=state)


async def after(page, kind, count=1):
    """Until the page has taken a message of this kind."""
    await page.wait_for_function("([kind, count]) => voxagent.events[kind] >= count", arg=[kind, count])


async def marked(page, mark):
    return await page.locator(f"#log .bubble.agent .{mark}").all_text_contents()


async def test_sound_goes_both_ways_and_a_hang_up_closes_the_connection(page, agent):
    assert await page.locator("#processing input:checked").count() == 3
    await page.locator("summary").click()
    # A steady tone is what noise suppression takes away.
    await page.get_by_label("Noise suppression").uncheck()
    await page.get_by_label("Automatic gain").uncheck()
    await page.get_by_role("button", name="Start call").click()
    connection = await agent.connection()
    assert [await asyncio.wait_for(connection.pings.get(), 10) for _ in range(2)] == ["ping 1", "ping 2"]
    assert share_at(CALLER_HZ, (await connection.heard(1.2))[-RATE // 2 :]) > 0.8
    await page.wait_for_function("voxagent.levels.mic > 0.4 && voxagent.levels.bot > 0.4")
    await page.wait_for_function("/^[0-9]+ ms$/.test(document.getElementById('rtt').textContent)")
    assert agent.candidates[0]["candidate"].startswith("candidate:")
    assert agent.candidates[-1]["candidate"] == ""
    assert await page.locator("#microphone option").count() > 1
    await page.get_by_role("button", name="Hang up").click()
    await asyncio.wait_for(connection.closed.wait(), 10)
    await in_state(page, "ended")


async def test_the_agents_messages_become_captions_and_figures(page, agent):
    await page.locator("#call").click()
    connection = await agent.connection()
    said = "Yes \U0001f44d\U0001f3fd sure. "
    more = "Anything else?"
    await connection.send(
        event("hello", call="1", name="Reception"),
        {"type": "server-message", "data": {"event": "user", "text": "not ours"}},
        event("user", text="Four please", final=False),
        event("user", text="Four, please.", final=True),
        event("state", state="speaking"),
        event("phrase", turn=1, start=0, text=said),
        event("word", turn=1, start=0, end=3),
        event("word", turn=1, start=4, end=6),
    )
    await after(page, "word", 2)
    assert await marked(page, "heard") == ["Yes \U0001f44d\U0001f3fd"]
    assert await marked(page, "pending") == ["sure."]
    await connection.send(
        event("phrase", turn=1, start=len(said), text=more),
        event("word", turn=1, start=7, end=12),
        event("something new"),
        event("cut", turn=1, heard=said.rstrip(), partly="Anything", unheard=more + " Dessert?"),
        event("phrase", turn=2, start=0, text="All right."),
        event("spoken", turn=2),
        event("latency", response_ms=610.4, parts={"turn": 200, "llm": 300, "tts": 110}),
    )
    await after(page, "latency")
    assert await page.locator("#log .bubble.caller p").all_text_contents() == ["Four, please."]
    assert await marked(page, "heard") == ["Yes \U0001f44d\U0001f3fd sure.", "All right."]
    assert await marked(page, "partly") == ["Anything"]
    assert await marked(page, "unheard") == ["else? Dessert?"]
    assert await marked(page, "pending") == []
    announced = await page.locator("[aria-live=polite] p").all_text_contents()
    assert announced == [
        "You: Four, please.",
        "Agent, cut off: Yes \U0001f44d\U0001f3fd sure. Anything",
        "Agent: All right.",
    ]
    assert await page.locator("#response").text_content() == "610 ms"
    assert await page.title() == "Reception – voxagent"
    await connection.send(event("decision", action="duck", cause="noise"))
    await connection.send(event("user_voice", on=True), event("decision", action="pause", cause="voice"))
    await after(page, "decision", 2)
    assert await page.locator("#to-duck").text_content() == "–"
    assert re.fullmatch(r"\d+ ms", await page.locator("#to-pause").text_content())
    assert await page.locator("#decision").text_content() == "pause (voice)"
    await connection.send(event("bye", reason="closing time"))
    await in_state(page, "ended")
    assert "closing time" in await page.locator("#log .note").text_content()


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ((503, "all 8 lines are busy", {"Retry-After": "7"}), "All 8 lines are busy. Try again in 7 seconds."),
        ((400, "the offer holds no audio", {}), "The offer holds no audio."),
    ],
)
async def test_a_refusal_is_told_in_words(page, agent, refusal, words):
    agent.refusal = refusal
    await page.locator("#call").click()
    await page.get_by_role("alert").filter(has_text=words).wait_for()
    await page.get_by_role("button", name="Start call").wait_for()


async def test_an_agent_that_is_gone_is_told_in_words(page, agent):
    await page.locator("#capacity", has_text="2 of 8 calls").wait_for()
    await page.route("**/api/**", lambda route: route.abort())
    await page.locator("#call").click()
    await page.get_by_role("alert").filter(has_text="The agent does not answer.").wait_for()


async def test_a_microphone_denied_is_told_in_words(page, agent):
    agent.headers = {"Permissions-Policy": "microphone=()"}
    await page.reload()
    await page.locator("#call").click()
    await page.get_by_role("alert").filter(has_text="The microphone is not allowed.").wait_for()
    await in_state(page, "idle")
    assert agent.offers == []


async def test_an_insecure_address_is_told_before_anything_is_tried(page, agent):
    async def serve(route):
        await route.fulfill(response=await route.fetch(url=agent.url + route.request.url.split("/", 3)[3]))

    await page.route("http://agent.test/**", serve)
    await page.goto("http://agent.test/")
    await page.get_by_role("alert").filter(has_text="https://").wait_for()
    await page.unroute_all(behavior="wait")


async def test_a_call_without_a_media_path_is_told_in_words(clocked, agent):
    agent.walled = True
    await clocked.clock.install()
    await clocked.locator("#call").click()
    await agent.connection()
    while await clocked.locator("#trouble").is_hidden():
        await clocked.clock.fast_forward(2000)
    assert "TURN" in await clocked.locator("#trouble").text_content()
    await in_state(clocked, "idle")


async def test_a_lost_connection_comes_back_by_itself(page, agent):
    await page.locator("#call").click()
    first = await agent.connection()
    await first.send(event("hello", call="1", name="Desk"), event("phrase", turn=1, start=0, text="Hello there."))
    await after(page, "phrase")
    await first.pc.close()
    await in_state(page, "reconnecting")
    second = await agent.connection()
    assert agent.offers[1]["pc_id"] == "call-1"
    assert agent.offers[1]["restart_pc"] is True
    await second.send(event("hello", call="1", name="Desk"), event("word", turn=1, start=0, end=5))
    await after(page, "word")
    assert await marked(page, "heard") == ["Hello"]
    await in_state(page, "live")
    assert await page.locator("#log .note").count() == 2


async def test_a_connection_that_stays_lost_is_given_up_in_words(clocked, agent):
    await clocked.locator("#call").click()
    connection = await agent.connection()
    await connection.send(event("hello", call="1", name="Desk"))
    await in_state(clocked, "live")
    await clocked.clock.install()
    agent.refusal = (503, "restarting", {"Retry-After": "2"})
    await connection.pc.close()
    while await clocked.locator("#trouble").is_hidden():
        await clocked.clock.fast_forward(1000)
    assert "within 20 seconds" in await clocked.locator("#trouble").text_content()
    await in_state(clocked, "ended")


async def test_the_keyboard_alone_is_enough(page, agent):
    reached = []
    for _ in range(4):
        reached.append(await page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", reached
        await page.keyboard.press("Tab")
    assert reached == ["call", "microphone", "SUMMARY", "log"]
    await page.locator("#call").focus()
    await page.keyboard.press("Space")
    connection = await agent.connection()
    await connection.send(event("state", state="listening"))
    await in_state(page, "listening")
    await page.keyboard.press("m")
    assert await page.locator("#mute").get_attribute("aria-pressed") == "true"
    while np.abs(await connection.heard(0.1)).max() > 0.01:
        pass
    await page.keyboard.press("Escape")
    await asyncio.wait_for(connection.closed.wait(), 10)
    await in_state(page, "ended")


CONTRASTS = """() => {
  const rgb = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const colour = rgb(getComputedStyle(element).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const poor = [];
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest(":disabled")) continue;
    const pair = [light(rgb(getComputedStyle(element).color)), light(ground(element))].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (ratio < 4.5) poor.push([walker.currentNode.data.trim(), ratio]);
  }
  return { poor, overflow: document.documentElement.scrollWidth - innerWidth };
}"""


async def test_a_phone_shows_it_all_without_scrolling_sideways_and_with_contrast(browser, agent):
    async with opened(browser, viewport={"width": 360, "height": 740}, reduced_motion="reduce") as page:
        await page.goto(agent.url)
        await page.locator("#call").click()
        connection = await agent.connection()
        await connection.send(
            event("user", text="a" * 80),
            event("phrase", turn=1, start=0, text="Here you are, one two three."),
            event("word", turn=1, start=0, end=4),
            event("phrase", turn=2, start=0, text="One two."),
            event("cut", turn=2, heard="", partly="One", unheard="One two."),
            event("latency", response_ms=1612, parts=dict.fromkeys(("turn", "stt", "llm", "phrase", "tts"), 1300)),
            event("error", message="the recogniser stopped"),
        )
        await after(page, "error")
        grounds = []
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme)
            assert await page.evaluate(CONTRASTS) == {"poor": [], "overflow": 0}
            grounds.append(await page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert grounds[0] != grounds[1]
        assert await page.evaluate("getComputedStyle(document.querySelector('.dot')).transitionDuration") == "0s"
