//! [`OpenSockets`]: the sockets of a server, which closes them when it stops.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The sockets of a server, so that it can close them.
pub(super) struct OpenSockets {
    stopping: AtomicBool,
    /// Open sockets by number.
    open: Mutex<(u64, HashMap<u64, TcpStream>)>,
    closed: Condvar,
}

impl OpenSockets {
    pub(super) fn new() -> OpenSockets {
        OpenSockets {
            stopping: AtomicBool::new(false),
            open: Mutex::new((0, HashMap::new())),
            closed: Condvar::new(),
        }
    }

    // No holder of the lock panics while it changes the map.
    fn open(&self) -> MutexGuard<'_, (u64, HashMap<u64, TcpStream>)> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Registers a socket. Returns `None` if the server stops, or if `most` are open.
    pub(super) fn register(
        self: &Arc<OpenSockets>,
        stream: &TcpStream,
        most: usize,
    ) -> io::Result<Option<OpenSocket>> {
        let copy = stream.try_clone()?;
        let mut open = self.open();
        if self.is_stopping() || open.1.len() >= most {
            return Ok(None);
        }
        open.0 += 1;
        let number = open.0;
        open.1.insert(number, copy);
        let sockets = Arc::clone(self);
        Ok(Some(OpenSocket { sockets, number }))
    }

    /// Closes all sockets, and waits until their threads have noticed.
    pub(super) fn close_all(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        let mut open = self.open();
        for stream in open.1.values() {
            // An error means that the peer has closed it.
            let _ = stream.shutdown(Shutdown::Both);
        }
        while !open.1.is_empty() {
            let waited = self.closed.wait(open);
            open = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A registered socket, until it is dropped.
pub(super) struct OpenSocket {
    sockets: Arc<OpenSockets>,
    number: u64,
}

impl Drop for OpenSocket {
    fn drop(&mut self) {
        self.sockets.open().1.remove(&self.number);
        self.sockets.closed.notify_all();
    }
}
