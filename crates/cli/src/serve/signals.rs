//! Signals that a server handles.

use farbank_server::ServerHandle;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::common::Failure;

/// Signals that stop the server. memcached handles SIGUSR1 in this way.
const STOPPING: [i32; 4] = [SIGTERM, SIGINT, SIGQUIT, SIGUSR1];

/// Handles signals for the server of `handle` on a thread of its own, until the process ends.
pub(super) fn handle(handle: ServerHandle) -> Result<(), Failure> {
    let mut signals = Signals::new(STOPPING.into_iter().chain([SIGHUP]))
        .map_err(|e| Failure::failed(format!("cannot wait for signals: {e}")))?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || stop_or_reload(&mut signals, &handle))
        .map_err(|e| Failure::failed(format!("cannot start a thread: {e}")))?;
    Ok(())
}

/// Stops the server cleanly at the first stopping signal. A second one ends the process by its default action. SIGHUP does
/// neither, as in Redis, because a terminal may close. It lets the server read the auth file again, as in memcached.
fn stop_or_reload(signals: &mut Signals, handle: &ServerHandle) {
    let mut is_stopping = false;
    for signal in signals.forever() {
        if signal == SIGHUP {
            reload(handle);
            continue;
        }
        if is_stopping {
            emulate_default_handler(signal).ok();
            std::process::exit(1);
        }
        is_stopping = true;
        tracing::info!(signal, "stopping");
        handle.stop();
    }
}

fn reload(handle: &ServerHandle) {
    match handle.reload() {
        Ok(Some(names)) => tracing::info!(names, "the memcached auth file was read again"),
        Ok(None) => tracing::info!("SIGHUP is ignored: there is no memcached auth file"),
        Err(error) => {
            tracing::error!("the memcached auth file was not read again, the names stay: {error}");
        }
    }
}
