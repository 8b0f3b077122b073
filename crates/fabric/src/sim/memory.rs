//! A memory server's memory, and the effect of writes on reads that overlap them in time.
//!
//! A read of several lines takes each line at a time of its own between the start and the end of the transfer, in
//! no particular order. An event for each line would be expensive. Instead a read copies all lines at its start and
//! stays open until its end. A write during that time also updates the buffer of each open read, for the lines whose
//! time has not come yet. The result is the same, and a read without concurrent writes costs only one event.

use farbank_pm::rng::Rng;

const PAGE: usize = 1 << 20;
/// Bytes in a line, which a read takes at one time.
pub(super) const LINE: u64 = 64;

/// An open read: its verb, its bytes and its time span.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenRead {
    pub(super) post: u32,
    pub(super) verb: u32,
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) start: u64,
    pub(super) end: u64,
    /// Whether lines are taken in increasing order.
    pub(super) in_order: bool,
}

impl OpenRead {
    /// Returns the time at which the read takes `line`.
    fn moment(&self, line: u64) -> u64 {
        let (first, last) = (self.at / LINE, (self.at + self.len - 1) / LINE);
        let took = self.end - self.start;
        if self.in_order {
            return self.start + took * (line - first) / (last - first).max(1);
        }
        let seed = u64::from(self.post) << 32 | u64::from(self.verb);
        self.start + Rng::new(seed ^ self.start).fork(line).below(took + 1)
    }
}

/// A range of written bytes that an open read has yet to take.
pub(super) struct ReadPatch {
    pub(super) read: OpenRead,
    pub(super) from: u64,
    pub(super) to: u64,
}

/// The memory of one server.
#[derive(Default)]
pub(super) struct ServerMemory {
    pages: Vec<Box<[u8]>>,
    lock: Vec<u8>,
    open: Vec<OpenRead>,
}

impl ServerMemory {
    pub(super) fn new(host_bytes: u64, lock_bytes: u64) -> ServerMemory {
        let pages = host_bytes.div_ceil(PAGE as u64);
        ServerMemory {
            pages: (0..pages).map(|_| Box::default()).collect(),
            lock: vec![0; lock_bytes as usize],
            open: Vec::new(),
        }
    }

    /// Returns the bytes of host memory. Pages that were never written are not allocated.
    pub(super) fn host_bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE as u64
    }

    pub(super) fn lock_bytes(&self) -> u64 {
        self.lock.len() as u64
    }

    pub(super) fn read(&self, lock: bool, at: u64, to: &mut [u8]) {
        if lock {
            to.copy_from_slice(&self.lock[at as usize..][..to.len()]);
            return;
        }
        let mut at = at as usize;
        let mut rest = to;
        while !rest.is_empty() {
            let (page, within) = (at / PAGE, at % PAGE);
            let n = rest.len().min(PAGE - within);
            let (now, later) = rest.split_at_mut(n);
            match self.pages[page].get(within..within + n) {
                Some(bytes) => now.copy_from_slice(bytes),
                None => now.fill(0),
            }
            (rest, at) = (later, at + n);
        }
    }

    pub(super) fn write(&mut self, lock: bool, at: u64, bytes: &[u8]) {
        if lock {
            self.lock[at as usize..][..bytes.len()].copy_from_slice(bytes);
            return;
        }
        let mut at = at as usize;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (page, within) = (at / PAGE, at % PAGE);
            let (now, later) = rest.split_at(rest.len().min(PAGE - within));
            let page = &mut self.pages[page];
            if page.is_empty() {
                *page = vec![0; PAGE].into_boxed_slice();
            }
            page[within..within + now.len()].copy_from_slice(now);
            (rest, at) = (later, at + now.len());
        }
    }

    pub(super) fn word(&self, lock: bool, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.read(lock, at, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Adds an open read, and drops those that have ended.
    pub(super) fn opened(&mut self, read: OpenRead) {
        self.open.retain(|other| other.end > read.start);
        if read.end > read.start {
            self.open.push(read);
        }
    }

    /// Returns the parts of open reads that a write at time `now` of `len` bytes of host memory at `at` changes.
    pub(super) fn seen_by(&self, now: u64, at: u64, len: u64) -> Vec<ReadPatch> {
        let mut patches = Vec::new();
        for read in &self.open {
            let (from, to) = (at.max(read.at), (at + len).min(read.at + read.len));
            if read.end <= now || from >= to {
                continue;
            }
            for line in from / LINE..=(to - 1) / LINE {
                if read.moment(line) > now {
                    patches.push(ReadPatch {
                        read: *read,
                        from: from.max(line * LINE),
                        to: to.min((line + 1) * LINE),
                    });
                }
            }
        }
        patches
    }
}
