//! [`SignalHandlers`]: the signal handlers of this process, which survive the loading of libfabric.
//!
//! A library that Debian's libfabric is linked with, libinfinipath, installs handlers when it is loaded. They print a backtrace and end the
//! process, also for SIGTERM. So a memory server would not stop in order, and a program would lose its handlers of access errors.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

/// Signals for which a library may install handlers.
const SIGNALS: [c_int; 6] = [
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGINT,
    libc::SIGSEGV,
    libc::SIGTERM,
];

/// The handlers at one time.
pub(super) struct SignalHandlers([Option<libc::sigaction>; SIGNALS.len()]);

impl SignalHandlers {
    pub(super) fn save() -> SignalHandlers {
        SignalHandlers(SIGNALS.map(|signal| {
            let mut handler = MaybeUninit::uninit();
            // SAFETY: changes no handler, and stores the one that is installed if it returns 0.
            unsafe {
                let code = libc::sigaction(signal, ptr::null(), handler.as_mut_ptr());
                (code == 0).then(|| handler.assume_init())
            }
        }))
    }

    /// Installs the handlers again.
    pub(super) fn restore(self) {
        for (signal, handler) in SIGNALS.iter().zip(&self.0) {
            if let Some(handler) = handler {
                // SAFETY: the handler was installed before, so it fulfils the requirements of a handler. The call cannot fail
                // for a signal whose handler could be read and which can be caught.
                unsafe { libc::sigaction(*signal, handler, ptr::null_mut()) };
            }
        }
    }
}
