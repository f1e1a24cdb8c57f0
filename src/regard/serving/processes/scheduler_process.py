"""The scheduler process: loads the models, and answers the jobs of the front ends."""

import asyncio
import signal

from regard.core.errors import EngineCrashed
from regard.serving.http.keys import KeyBudgets
from regard.serving.processes.child import Child, run_child
from regard.serving.processes.messages import Start
from regard.serving.processes.process_end import ProcessEnd
from regard.serving.processes.scheduler_host import SchedulerHost
from regard.serving.scheduler.model_loader import ModelLoader
from regard.serving.scheduler.placement import Placement
from regard.serving.scheduler.scheduler import SchedulerLimits
from regard.serving.scheduler.search_limits import OptionCaps


async def run(child: Child, start: Start) -> None:
    config, loop, stop = start.config, asyncio.get_running_loop(), asyncio.Event()
    ending = ProcessEnd(0.0)

    def end(number: signal.Signals) -> None:
        ending.signaled(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    limits = SchedulerLimits(
        slots=config.slots,
        queued_jobs=config.queue,
        queued_tokens=256 * config.queue,
        caps=OptionCaps(config.max_length, config.max_beams),
        search_memory=config.search_memory,
    )
    engine = Placement.of(config.models, config.devices).engine(limits)
    loader = ModelLoader(engine, config.models)
    loading = asyncio.ensure_future(asyncio.to_thread(loader.load_all))
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({loading, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        return  # stopped while it loads
    loading.result()
    engine.start()
    child.stuck = engine.stuck
    host = SchedulerHost(engine, loader, KeyBudgets(config.keys))

    async def reload() -> None:
        await asyncio.to_thread(loader.load_all_anew)
        host.push_state()

    reloads = set[asyncio.Task[None]]()  # or they would be collected while they run
    loop.add_signal_handler(signal.SIGHUP, lambda: reloads.add(asyncio.ensure_future(reload())))
    listening = await host.listen(config.socket)
    pushing = asyncio.ensure_future(host.push_states())
    orphaned = asyncio.ensure_future(child.orphaned.wait())
    crashes: asyncio.Queue[EngineCrashed] = asyncio.Queue()

    def crash(error: EngineCrashed) -> None:
        loop.call_soon_threadsafe(crashes.put_nowait, error)

    engine.when_crashed(crash)
    crashed = asyncio.ensure_future(crashes.get())
    child.ready()
    try:
        await asyncio.wait({stopped, orphaned, crashed}, return_when=asyncio.FIRST_COMPLETED)
        if crashed.done():
            raise crashed.result()
        while (
            not stopped.done() and host.sessions
        ):  # without a supervisor, front ends still finish their requests
            await asyncio.sleep(0.05)
    finally:
        listening.close()
        for task in (pushing, orphaned, stopped, crashed):
            task.cancel()
        await asyncio.to_thread(engine.stop)
        if not engine.ended and not crashed.done():
            ending.end("the engine is still computing", ending.number or signal.SIGTERM)


if __name__ == "__main__":
    run_child(run)
