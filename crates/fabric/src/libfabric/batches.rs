//! [`Batches`]: the batches of one thread of a compute server, executed by the operations of its endpoint.
//!
//! ```text
//!   batch:  verbs ─▶ the next verbs that may be under way together ─▶ transfers ─▶ endpoint
//!             ▲                                                                       │
//!             └──────────────── all of them have ended: results ◀─────────────────────┘
//! ```

use std::collections::{HashMap, VecDeque};
use std::task::{Context, Poll, Waker};

use super::abi::FiAddr;
use super::transfers::{
    EndedTransfer, NotPosted, RemotePlace, Transfer, TransferLimits, Transfers, is_words,
};
use crate::addr::GAddr;
use crate::fabric::{FabricError, Nanos, Verb};
use crate::tcp::ServerInfo;
use crate::wire::is_batch;

const WORD: usize = size_of::<u64>();
/// Bits of a transfer's number for its position in its verb, and for the verb in its batch.
const PART_BITS: u32 = 12;

/// The endpoint of a memory server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RemoteServer {
    pub(super) peer: FiAddr,
    /// Address of the first byte of the lock memory, before the host memory.
    pub(super) base: u64,
    pub(super) key: u64,
    pub(super) info: ServerInfo,
}

impl RemoteServer {
    /// Returns the place of `len` bytes at `at`, if they are in the server's memory.
    fn place(&self, at: GAddr, len: usize) -> Option<RemotePlace> {
        let (start, bytes) = match at.is_lock() {
            true => (0, self.info.lock_bytes),
            false => (self.info.lock_bytes, self.info.host_bytes),
        };
        let end = at.at().checked_add(len as u64)?;
        (end <= bytes).then_some(RemotePlace {
            peer: self.peer,
            at: self.base + start + at.at(),
            key: self.key,
        })
    }

    /// Returns the place on which `verb` acts, if it is valid.
    fn place_of(&self, verb: &Verb) -> Option<RemotePlace> {
        match verb {
            Verb::Read { at, bytes } | Verb::Write { at, bytes } => self.place(*at, bytes.len()),
            Verb::Cas { at, mask, .. } if *mask == u64::MAX => self.word(*at),
            Verb::Cas { .. } => None,
            Verb::Add { at, .. } => self.word(*at),
        }
    }

    fn word(&self, at: GAddr) -> Option<RemotePlace> {
        let place = self.place(at, WORD)?;
        at.at().is_multiple_of(WORD as u64).then_some(place)
    }
}

/// A transfer that is to be posted.
type Unposted = (RemotePlace, u64, Transfer);

struct PendingBatch {
    server: u16,
    verbs: Vec<Verb>,
    /// Verbs that have ended or are under way.
    begun: usize,
    /// Transfers of begun verbs that are to be posted, in their order.
    unposted: VecDeque<Unposted>,
    /// Transfers that are under way.
    under_way: u32,
    result: Option<Result<(), FabricError>>,
    waker: Option<Waker>,
    /// Whether the future of the batch was dropped.
    is_dropped: bool,
}

impl PendingBatch {
    fn end(&mut self, result: Result<(), FabricError>) {
        if self.result.is_none() {
            self.result = Some(result);
            self.unposted.clear();
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
        }
    }
}

/// The batches of a thread that are under way.
pub(super) struct Batches {
    transfers: Transfers,
    /// `None`: the server is not used.
    servers: Vec<Option<RemoteServer>>,
    /// Errors with which all batches to a server fail (LIBFABRIC-5).
    lost: Vec<Option<FabricError>>,
    batches: HashMap<u64, PendingBatch>,
    next: u64,
    /// Batches with transfers that the provider could not take.
    stalled: VecDeque<u64>,
    /// Batches in the order in which they were posted, with their deadlines.
    posted: VecDeque<(u64, Nanos)>,
    ended: Vec<EndedTransfer>,
    /// Longest write after which the next verb may be posted at once, in bytes.
    ordered_bytes_max: usize,
}

impl Batches {
    pub(super) fn new(transfers: Transfers, servers: Vec<Option<RemoteServer>>) -> Batches {
        Batches {
            lost: vec![None; servers.len()],
            servers,
            batches: HashMap::new(),
            next: 0,
            stalled: VecDeque::new(),
            posted: VecDeque::new(),
            ended: Vec::new(),
            ordered_bytes_max: transfers.endpoint().info().write_order().bytes_max,
            transfers,
        }
    }

    pub(super) fn transfers(&self) -> &Transfers {
        &self.transfers
    }

    /// Returns whether the provider grants the order of writes and atomics, for all verbs that are one transfer.
    pub(super) fn is_ordered(&self) -> bool {
        self.ordered_bytes_max >= self.transfers.limits().write_words
    }

    /// Posts a batch to `server`. Returns its number.
    pub(super) fn post(&mut self, server: u16, verbs: Vec<Verb>, deadline: Nanos) -> u64 {
        self.next += 1;
        let number = self.next;
        let index = usize::from(server);
        let is_valid = |remote: &RemoteServer| {
            is_batch(&verbs) && verbs.iter().all(|verb| remote.place_of(verb).is_some())
        };
        let refused = match self.servers.get(index) {
            None | Some(None) => Some(FabricError::Unlisted { server }),
            Some(_) if self.lost[index].is_some() => self.lost[index],
            Some(Some(remote)) if !is_valid(remote) => Some(FabricError::Rejected { server }),
            Some(Some(_)) => None,
        };
        let mut batch = PendingBatch {
            server,
            verbs,
            begun: 0,
            unposted: VecDeque::new(),
            under_way: 0,
            result: None,
            waker: None,
            is_dropped: false,
        };
        if let Some(error) = refused {
            batch.end(Err(error));
        }
        let is_pending = batch.result.is_none();
        self.batches.insert(number, batch);
        if is_pending {
            self.posted.push_back((number, deadline));
            self.advance(number);
        }
        number
    }

    /// Begins the next verbs of batch `number` if all begun ones have ended, and posts their transfers as far as possible.
    fn advance(&mut self, number: u64) {
        loop {
            let Some(batch) = self.batches.get_mut(&number) else {
                return;
            };
            if batch.result.is_some() {
                return;
            }
            if batch.unposted.is_empty() && batch.under_way > 0 {
                return;
            }
            if batch.unposted.is_empty() && batch.begun == batch.verbs.len() {
                batch.end(Ok(()));
                return;
            }
            if batch.unposted.is_empty() {
                let remote = &self.servers[usize::from(batch.server)];
                let remote = remote.as_ref().expect("a batch for it was posted");
                let limits = self.transfers.limits();
                batch.begin_next(number, remote, limits, self.ordered_bytes_max);
            }
            while let Some((place, id, transfer)) = batch.unposted.pop_front() {
                match self.transfers.post(place, id, transfer) {
                    Ok(()) => batch.under_way += 1,
                    Err((NotPosted::Again, transfer)) => {
                        batch.unposted.push_front((place, id, transfer));
                        self.stalled.push_back(number);
                        return;
                    }
                    Err((NotPosted::Refused, _)) => {
                        let server = batch.server;
                        return self.lose(server, FabricError::Timeout { server });
                    }
                }
            }
        }
    }

    /// Ends all batches to `server` with `error`, and all later ones.
    pub(super) fn lose(&mut self, server: u16, error: FabricError) {
        self.lost[usize::from(server)].get_or_insert(error);
        let of_server = |batch: &&mut PendingBatch| batch.server == server;
        for batch in self.batches.values_mut().filter(of_server) {
            batch.end(Err(error));
        }
    }

    /// Returns whether all batches to `server` fail.
    pub(super) fn is_lost(&self, server: u16) -> bool {
        self.lost[usize::from(server)].is_some()
    }

    /// Lets the provider work, and posts what may follow the transfers that have ended. Returns whether some have.
    pub(super) fn progress(&mut self) -> bool {
        let mut ended = std::mem::take(&mut self.ended);
        self.transfers.progress(&mut ended);
        let has_ended = !ended.is_empty();
        for transfer in ended.drain(..) {
            self.end_transfer(transfer);
        }
        self.ended = ended;
        for number in std::mem::take(&mut self.stalled) {
            self.advance(number);
        }
        has_ended
    }

    /// Returns whether a batch waits until the provider can take its next transfer.
    pub(super) fn is_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    fn end_transfer(&mut self, ended: EndedTransfer) {
        let number = ended.number >> (2 * PART_BITS);
        let Some(batch) = self.batches.get_mut(&number) else {
            return;
        };
        batch.under_way -= 1;
        let server = batch.server;
        match ended.is_ok {
            true => batch.take_result(ended, self.transfers.limits()),
            false => self.lose(server, FabricError::Timeout { server }),
        }
        self.advance(number);
        self.remove_if_over(number);
    }

    /// Removes a batch whose future was dropped, when the library has ended its transfers.
    fn remove_if_over(&mut self, number: u64) {
        let is_over = self.batches.get(&number).is_some_and(|batch| {
            batch.is_dropped && batch.result.is_some() && batch.under_way == 0
        });
        if is_over {
            self.batches.remove(&number);
        }
    }

    /// Ends batches whose time is over, and loses their servers. Returns the next deadline.
    pub(super) fn expire(&mut self, now: Nanos) -> Option<Nanos> {
        while let Some((number, deadline)) = self.posted.front().copied() {
            let batch = self.batches.get(&number);
            match batch.filter(|batch| batch.result.is_none()) {
                None => {}
                Some(_) if deadline > now => return Some(deadline),
                Some(batch) => {
                    let server = batch.server;
                    self.lose(server, FabricError::Timeout { server });
                }
            }
            self.posted.pop_front();
        }
        None
    }

    /// Returns the result of batch `number`, once.
    pub(super) fn poll(
        &mut self,
        number: u64,
        context: &mut Context<'_>,
    ) -> Poll<Result<Vec<Verb>, FabricError>> {
        let batch = self.batches.get_mut(&number);
        let batch = batch.expect("the batch exists as long as its future");
        match batch.result {
            None => {
                batch.waker = Some(context.waker().clone());
                Poll::Pending
            }
            Some(Ok(())) => Poll::Ready(Ok(std::mem::take(&mut batch.verbs))),
            Some(Err(error)) => Poll::Ready(Err(error)),
        }
    }

    /// Forgets the future of batch `number`. The batch continues.
    pub(super) fn drop_future(&mut self, number: u64) {
        if let Some(batch) = self.batches.get_mut(&number) {
            batch.is_dropped = true;
            batch.waker = None;
        }
        self.remove_if_over(number);
    }
}

impl PendingBatch {
    /// Makes the transfers of the next verb, and of those after it that may be under way at the same time (LIBFABRIC-4).
    fn begin_next(
        &mut self,
        number: u64,
        remote: &RemoteServer,
        limits: TransferLimits,
        ordered_bytes_max: usize,
    ) {
        loop {
            let index = self.begun;
            self.begun += 1;
            let verb = &mut self.verbs[index];
            let place = remote.place_of(verb).expect("the batch was validated");
            let first = (number << PART_BITS | index as u64) << PART_BITS;
            let before = self.unposted.len();
            split(place, first, verb, limits, &mut self.unposted);
            let is_one = self.unposted.len() == before + 1;
            let is_ordered = matches!(self.unposted.back(), Some((_, _, Transfer::Write(bytes)))
                if is_one && bytes.len() <= ordered_bytes_max);
            let next = self.verbs.get(self.begun);
            let next_changes = next.is_some_and(|verb| !matches!(verb, Verb::Read { .. }));
            if !(is_ordered && next_changes) {
                return;
            }
        }
    }

    /// Takes the result of a transfer into its verb.
    fn take_result(&mut self, ended: EndedTransfer, limits: TransferLimits) {
        let part = ended.number & ((1 << PART_BITS) - 1);
        let index = ended.number >> PART_BITS & ((1 << PART_BITS) - 1);
        match (&mut self.verbs[index as usize], ended.transfer) {
            (Verb::Read { at, bytes }, Transfer::Read(read)) => match bytes.is_empty() {
                // The verb is one transfer, which has used the verb's buffer.
                true => *bytes = read,
                false => {
                    let from = part as usize * read_piece_bytes(*at, bytes.len(), limits);
                    bytes[from..][..read.len()].copy_from_slice(&read);
                }
            },
            (Verb::Write { bytes, .. }, Transfer::Write(written)) if bytes.is_empty() => {
                *bytes = written;
            }
            (Verb::Cas { found, .. }, Transfer::Cas { found: word, .. })
            | (Verb::Add { found, .. }, Transfer::Add { found: word, .. }) => *found = word,
            _ => {}
        }
    }
}

/// Returns the bytes of each transfer of a read but the last.
fn read_piece_bytes(at: GAddr, bytes: usize, limits: TransferLimits) -> usize {
    match is_words(at.at(), bytes) {
        true => limits.read_words,
        false => limits.read_bytes,
    }
}

/// Appends the transfers of `verb`, which is at `place`, to `to`. A verb that is one transfer lends its buffer to it.
fn split(
    place: RemotePlace,
    first: u64,
    verb: &mut Verb,
    limits: TransferLimits,
    to: &mut VecDeque<Unposted>,
) {
    let part_at = |part: u64, piece_bytes: usize| RemotePlace {
        at: place.at + part * piece_bytes as u64,
        ..place
    };
    match verb {
        Verb::Read { at, bytes } => {
            let piece_bytes = read_piece_bytes(*at, bytes.len(), limits);
            if bytes.len() <= piece_bytes {
                let bytes = std::mem::take(bytes);
                if !bytes.is_empty() {
                    to.push_back((place, first, Transfer::Read(bytes)));
                }
                return;
            }
            for (part, piece) in (0..).zip(bytes.chunks(piece_bytes)) {
                let transfer = Transfer::Read(vec![0; piece.len()]);
                to.push_back((part_at(part, piece_bytes), first + part, transfer));
            }
        }
        Verb::Write { at, bytes } => {
            let piece_bytes = match is_words(at.at(), bytes.len()) {
                true => limits.write_words,
                false => limits.write_bytes,
            };
            if bytes.len() <= piece_bytes {
                let bytes = std::mem::take(bytes);
                if !bytes.is_empty() {
                    to.push_back((place, first, Transfer::Write(bytes)));
                }
                return;
            }
            for (part, piece) in (0..).zip(bytes.chunks(piece_bytes)) {
                let transfer = Transfer::Write(piece.to_vec());
                to.push_back((part_at(part, piece_bytes), first + part, transfer));
            }
        }
        Verb::Cas { old, new, .. } => {
            let (old, new) = (*old, *new);
            to.push_back((place, first, Transfer::Cas { old, new, found: 0 }));
        }
        Verb::Add { by, .. } => {
            let by = *by;
            to.push_back((place, first, Transfer::Add { by, found: 0 }));
        }
    }
}
