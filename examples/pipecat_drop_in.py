"""A Pipecat bot with voxagent's voice: one line replaced, one added. Runs offline, without keys.

    python examples/pipecat_drop_in.py

The language model is scripted and the transport plays into memory, so that it runs anywhere; the pipeline is the one
you have. Put your own services and transport in their places and leave the two marked lines.
"""

import asyncio

from pipecat.frames.frames import EndFrame, LLMMessagesAppendFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.workers.runner import WorkerRunner

from voxagent.ledger import Heard
from voxagent_pipecat import BargeInGate, LoopbackTransport, VoxAgentTTSService
from voxagent_pipecat.rehearsal import ScriptedLLM

REPLIES = [
    "Sure, I can help you with that. First I would like to know where you want to go, and when you want to be there.",
    "No problem. Let us start over.",
]


async def main() -> None:
    """Lets the caller speak over the first reply, and prints what the bot knows about it."""
    transport = LoopbackTransport()  # yours: SmallWebRTCTransport, a phone serializer, ...
    llm = ScriptedLLM(REPLIES)  # yours: OpenAILLMService, ...
    tts = VoxAgentTTSService("piper")  # <- was: PiperTTSService(...)
    context = LLMContext()
    aggregators = LLMContextAggregatorPair(context)
    pipeline = Pipeline(
        [
            transport.input(),
            aggregators.user(),
            llm,
            tts,
            BargeInGate(),  # <- new: nothing of a cut reply gets past it
            transport.output(),
            aggregators.assistant(),
        ]
    )

    @tts.event_handler("on_turn_spoken")
    async def on_turn_spoken(_: VoxAgentTTSService, context_id: str, heard: Heard, interrupted: bool) -> None:
        print(f"{'interrupted' if interrupted else 'spoken to the end'}: {heard.heard!r}")
        if heard.unheard:
            print(f"  not heard: {heard.unheard!r}")

    worker = PipelineWorker(pipeline, params=PipelineParams(audio_out_sample_rate=24000), enable_rtvi=False)
    runner = WorkerRunner()
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    await llm.ready.wait()

    await worker.queue_frame(LLMMessagesAppendFrame([{"role": "user", "content": "I need a ticket."}], run_llm=True))
    await asyncio.sleep(3.0)
    await llm.cut()  # The caller says "wait"; in your pipeline voice activity detection does this.
    cut_s = asyncio.get_running_loop().time()
    await asyncio.sleep(0.5)
    last_s = transport.last_audible_s() or cut_s
    print(f"  silence {1000 * (last_s - cut_s):.0f} ms after the caller spoke")
    await worker.queue_frame(LLMMessagesAppendFrame([{"role": "user", "content": "Wait."}], run_llm=True))
    await asyncio.sleep(1.0)
    await worker.queue_frame(EndFrame())
    await running
    for message in context.messages:
        print(message)


if __name__ == "__main__":
    asyncio.run(main())
