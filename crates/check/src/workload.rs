//! Workload of a run: steps drawn from a seed. The seed also selects the mix of steps.

use farbank_pm::rng::Rng;

use crate::target::{Change, KeyWrite, ReadView, TargetOp, TargetShape, Value};

/// One step of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WorkloadStep {
    /// A session runs an operation.
    Apply(usize, TargetOp),
    /// A session commits.
    Commit(usize),
    /// A session with staged operations is dropped, and a new one replaces it.
    Abandon(usize),
    /// The medium syncs, which makes all tickets durable.
    Sync,
    /// One step of background work.
    Clean,
    /// Time advances by this many milliseconds.
    Advance(u64),
    /// The structure is closed cleanly and opened.
    Close,
    /// The process is killed. Its writes stay visible, and those not yet durable stay volatile.
    Kill,
    /// The power is cut, and one of the possible images is opened.
    Cut,
    /// The n-th drain from here fails.
    Fail(u64),
}

/// Generator of steps. The same seed and shape give the same steps, whatever the structure answers.
#[derive(Clone, Debug)]
pub struct Workload {
    shape: TargetShape,
    rng: Rng,
    next_value: u64,
    now_ms: u64,
    /// Average number of operations per batch.
    batch: u64,
    /// Half of the accesses go to this many keys.
    hot: u64,
    /// Key deleted last. Groups delete it again, so that they find it absent.
    deleted: u64,
    /// Whether value sizes are drawn uniformly; otherwise short values are more likely.
    long: bool,
    disasters: bool,
    /// Whether the run has background work in place of closes, kills, power cuts and failed drains. A segment can
    /// then be recycled several times, and a tombstone reclaimed, within one open of the pool.
    calm: bool,
    io_errors: bool,
}

/// One run in this many is calm.
const CALM_ONE_IN: u64 = 4;

/// Returns the nearest multiple of `part_bytes` if it differs from `bytes` by less than a sixteenth of a part,
/// otherwise `bytes`.
fn whole_parts(bytes: u32, part_bytes: u32) -> u32 {
    if part_bytes == 0 {
        return bytes;
    }
    let parts = (bytes + part_bytes / 2) / part_bytes * part_bytes;
    match parts > 0 && parts.abs_diff(bytes) < part_bytes / 16 {
        true => parts,
        false => bytes,
    }
}

/// Time at which a run begins. It is far from 0, because an expiry of 0 means never.
pub(crate) const START_MS: u64 = 1_000_000;

impl Workload {
    /// Creates the workload of `seed` for a structure of this shape.
    #[must_use]
    pub fn new(shape: &TargetShape, seed: u64, io_errors: bool) -> Workload {
        let mut rng = Rng::new(seed).fork(1);
        Workload {
            batch: [1, 1, 2, 6][rng.below(4) as usize],
            hot: 1 + rng.below(3),
            deleted: 1,
            long: rng.one_in(3),
            shape: shape.clone(),
            rng,
            next_value: 1,
            now_ms: START_MS,
            disasters: true,
            calm: seed % CALM_ONE_IN == 1,
            io_errors,
        }
    }

    /// Returns the time in milliseconds after the steps drawn so far.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Returns a workload that continues this run with other steps, without further closes, kills, power cuts or
    /// failed drains.
    #[must_use]
    pub fn branch(&self, seed: u64) -> Workload {
        Workload {
            rng: Rng::new(seed),
            disasters: false,
            calm: false,
            batch: 1,
            ..self.clone()
        }
    }

    /// Draws the next step.
    pub fn step(&mut self) -> WorkloadStep {
        let session = self.rng.below(self.shape.sessions as u64) as usize;
        if self.rng.one_in(self.batch + 1) {
            return WorkloadStep::Commit(session);
        }
        match self.rng.below(100) {
            0..10 => WorkloadStep::Sync,
            10..16 if self.shape.cleans => WorkloadStep::Clean,
            16..20 if self.shape.expiry => {
                let ms = 1 + self.rng.below(2_000);
                self.now_ms += ms;
                WorkloadStep::Advance(ms)
            }
            20..26 if self.calm && self.shape.cleans => WorkloadStep::Clean,
            20 | 21 if self.disasters => WorkloadStep::Close,
            22 | 23 if self.disasters => WorkloadStep::Kill,
            24 if self.disasters => WorkloadStep::Cut,
            25 if self.disasters && self.io_errors => WorkloadStep::Fail(1 + self.rng.below(4)),
            26 if self.shape.flush_all => WorkloadStep::Apply(session, TargetOp::FlushAll),
            27..34 if self.shape.groups => WorkloadStep::Apply(session, self.group()),
            34 | 35 if self.shape.abandons => WorkloadStep::Abandon(session),
            34..46 => WorkloadStep::Apply(session, self.get()),
            46..52 if self.shape.updates => {
                let (key, change) = (self.key(), self.change());
                WorkloadStep::Apply(session, TargetOp::Update { key, change })
            }
            62 | 63 if self.shape.swaps => {
                WorkloadStep::Apply(session, TargetOp::random_swap(&mut self.rng))
            }
            52..62 if self.shape.deletes => {
                self.deleted = self.key();
                let key = self.deleted;
                WorkloadStep::Apply(session, TargetOp::Write(KeyWrite::Delete { key }))
            }
            _ => {
                let key = self.key();
                WorkloadStep::Apply(session, TargetOp::Write(self.put(key)))
            }
        }
    }

    fn key(&mut self) -> u64 {
        let among = if self.rng.one_in(2) {
            self.hot
        } else {
            self.shape.keys
        };
        1 + self.rng.below(among.min(self.shape.keys))
    }

    fn value(&mut self) -> Value {
        let (min, max) = self.shape.value_bytes;
        let spread = u64::from(max - min + 1);
        let mut bytes = self.rng.below(spread);
        if !self.long {
            bytes = bytes
                .min(self.rng.below(spread))
                .min(self.rng.below(spread));
        }
        self.next_value += 1;
        Value {
            id: self.next_value - 1,
            bytes: whole_parts(min + bytes as u32, self.shape.part_bytes),
        }
    }

    fn change(&mut self) -> Change {
        match self.rng.below(3) {
            0 if self.shape.decides => Change::Keep,
            1 if self.shape.decides => Change::Delete,
            _ => Change::Put(self.value()),
        }
    }

    fn put(&mut self, key: u64) -> KeyWrite {
        let value = self.value();
        let expires = self.shape.expiry && self.rng.one_in(4);
        let expires_ms = if expires {
            self.now_ms + 1 + self.rng.below(3_000)
        } else {
            0
        };
        KeyWrite::Put {
            key,
            value,
            expires_ms,
        }
    }

    fn group(&mut self) -> TargetOp {
        let mut writes: Vec<KeyWrite> = Vec::new();
        for _ in 0..2 + self.rng.below(3) {
            let delete = self.shape.deletes && self.rng.one_in(4);
            let key = if delete && self.rng.one_in(2) {
                self.deleted
            } else {
                self.key()
            };
            if writes.iter().any(|w| w.key() == key) {
                continue;
            }
            writes.push(if delete {
                KeyWrite::Delete { key }
            } else {
                self.put(key)
            });
        }
        TargetOp::Group(writes)
    }

    fn get(&mut self) -> TargetOp {
        let view = if self.rng.one_in(2) {
            ReadView::Durable
        } else {
            ReadView::Own
        };
        TargetOp::Get {
            key: self.key(),
            view,
        }
    }
}
