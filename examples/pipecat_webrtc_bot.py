"""A bot file for Pipecat's development runner, with voxagent's voice, transport and barge-in.

    pip install 'pipecat-voxagent[agent]' 'pipecat-ai[runner,webrtc]'
    python examples/pipecat_webrtc_bot.py -t webrtc

Works offline: the recogniser is embedded and the language model scripted. Put your own services in their places. The
marked lines are all that is voxagent's.
"""

from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair, LLMUserAggregatorParams
from pipecat.runner.types import RunnerArguments, SmallWebRTCRunnerArguments
from pipecat.transports.base_transport import TransportParams
from pipecat.turns.user_stop import TurnAnalyzerUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.workers.runner import WorkerRunner

from voxagent.floor import BargeInPolicy
from voxagent_agent.offline import OfflineLLM
from voxagent_pipecat import VoxAgentTTSService
from voxagent_pipecat.truth import HeardContext
from voxagent_pipecat.vad import WebRTCVADAnalyzer
from voxagent_pipecat.webrtc import VoxAgentWebRTCTransport
from voxagent_pipecat.whisper import EmbeddedSTTService


async def bot(runner_args: RunnerArguments) -> None:
    """Runs one call. Called by Pipecat's runner."""
    assert isinstance(runner_args, SmallWebRTCRunnerArguments)
    transport = VoxAgentWebRTCTransport(  # <- was: SmallWebRTCTransport(...)
        runner_args.webrtc_connection,
        TransportParams(audio_in_enabled=True, audio_out_enabled=True),
        policy=BargeInPolicy.preset("headset"),  # <- new: duck, pause, then cancel or resume
    )
    tts = VoxAgentTTSService("piper")  # <- was: PiperTTSService(...)
    stt = EmbeddedSTTService()  # yours: DeepgramSTTService, ...
    llm = OfflineLLM()  # yours: OpenAILLMService, ...
    pair = LLMContextAggregatorPair(
        LLMContext(),
        user_params=LLMUserAggregatorParams(
            vad_analyzer=WebRTCVADAnalyzer(),  # <- or Silero
            user_turn_strategies=UserTurnStrategies(
                start=[transport.user_turn_start_strategy()],  # <- new: the floor decides
                stop=[TurnAnalyzerUserTurnStopStrategy(turn_analyzer=LocalSmartTurnAnalyzerV3())],
            ),
        ),
    )
    worker = PipelineWorker(
        Pipeline(
            [
                transport.input(),
                stt,
                pair.user(),
                HeardContext(tts),  # <- new: the model reads what was heard, and a note about the rest
                llm,
                tts,
                transport.output(),
                pair.assistant(),
            ]
        ),
        # One conversion, from the voice's rate to WebRTC's.
        params=PipelineParams(audio_out_sample_rate=48000),
    )

    @transport.event_handler("on_client_disconnected")
    async def on_client_disconnected(_: object, __: object) -> None:
        await worker.cancel()

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await runner.run()


if __name__ == "__main__":
    from pipecat.runner.run import main

    main()
