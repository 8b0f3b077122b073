//! Programs of the threads of a schedule, drawn from seeds.

use farbank_pm::rng::Rng;
use farbank_pm::sim::Persistency;

use crate::target::{
    Change, KeyWrite, ReadView, SHARED_KEYS, Target, TargetOp, TargetShape, Value,
};

/// Number of threads in a schedule.
pub const THREADS: usize = 3;

/// One step of a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProgramStep {
    /// An operation.
    Apply(TargetOp),
    /// The session commits.
    Commit,
    /// The session commits, then the thread does one step of background work.
    Clean,
    /// The medium syncs, which makes all tickets durable.
    Sync,
}

/// Generator of the programs of a seed.
#[derive(Clone, Debug)]
pub struct ProgramGenerator {
    shape: TargetShape,
    seed: u64,
    keys: Vec<u64>,
    /// Persistency mode: what a power cut may lose.
    pub persistency: Persistency,
}

impl ProgramGenerator {
    /// Creates the generator of `seed` for a structure, in one of its modes.
    #[must_use]
    pub fn new(target: &dyn Target, seed: u64) -> ProgramGenerator {
        let shape = target.shape_in_threads();
        let mut rng = Rng::new(seed).fork(1);
        let first = rng.below(shape.keys);
        let shared = match seed % 2 {
            0 => shape.shared_keys,
            _ => SHARED_KEYS,
        };
        let stride = 1 + rng.below((shape.keys - 1) / (shared - 1));
        // Page mode is more likely, because late tickets make sessions meet each other's pending writes.
        let mut modes = vec![
            Persistency::Adr,
            Persistency::Word,
            Persistency::Eadr,
            Persistency::Page,
            Persistency::Page,
        ];
        modes.retain(|mode| target.modes().contains(mode));
        ProgramGenerator {
            seed,
            keys: (0..shared)
                .map(|n| 1 + (first + n * stride) % shape.keys)
                .collect(),
            persistency: modes[rng.below(modes.len() as u64) as usize],
            shape,
        }
    }

    /// Returns the writes of one session before the threads start. It commits after each write.
    #[must_use]
    pub fn prologue(&self) -> Vec<TargetOp> {
        let mut draw = self.draw(0);
        let ops = 3 + draw.rng.below(9);
        (0..ops).map(|_| draw.write(600)).collect()
    }

    /// Returns the steps of each thread in schedule `number`.
    #[must_use]
    pub fn threads(&self, number: u64) -> [Vec<ProgramStep>; THREADS] {
        let mut draw = self.draw(1 + number);
        std::array::from_fn(|_| {
            let ops = 3 + draw.rng.below(3);
            let batch = 1 + draw.rng.below(3);
            let mut steps = Vec::new();
            for _ in 0..ops {
                steps.extend(draw.background());
                steps.push(ProgramStep::Apply(draw.op()));
                if draw.rng.one_in(batch) {
                    steps.push(ProgramStep::Commit);
                }
            }
            steps
        })
    }

    /// Returns a random source for schedule `number`, with value ids that no other schedule uses.
    fn draw(&self, number: u64) -> ProgramDraw<'_> {
        ProgramDraw {
            of: self,
            rng: Rng::new(self.seed).fork(2).fork(number),
            next_value: 1 + 1_000 * number,
        }
    }
}

struct ProgramDraw<'a> {
    of: &'a ProgramGenerator,
    rng: Rng,
    next_value: u64,
}

impl ProgramDraw<'_> {
    fn background(&mut self) -> Option<ProgramStep> {
        match self.rng.below(20) {
            0 | 1 if self.of.shape.cleans => Some(ProgramStep::Clean),
            2..5 if self.of.persistency == Persistency::Page => Some(ProgramStep::Sync),
            _ => None,
        }
    }

    fn op(&mut self) -> TargetOp {
        let shape = &self.of.shape;
        match self.rng.below(100) {
            0..22 => TargetOp::Get {
                key: self.key(),
                view: ReadView::Durable,
            },
            22..32 => TargetOp::Get {
                key: self.key(),
                view: ReadView::Own,
            },
            32..48 if shape.updates => TargetOp::Update {
                key: self.key(),
                change: self.change(),
            },
            48..62 if shape.groups => self.group(),
            62 | 63 if shape.flush_all => TargetOp::FlushAll,
            64..69 if shape.swaps => TargetOp::random_swap(&mut self.rng),
            _ => self.write(120),
        }
    }

    fn key(&mut self) -> u64 {
        let keys = &self.of.keys;
        keys[self.rng.below(keys.len() as u64) as usize]
    }

    fn value(&mut self, bytes_max: u32) -> Value {
        let (min, max) = self.of.shape.value_bytes;
        let usual = max.min(bytes_max).max(min);
        let most = if self.rng.one_in(24) { max } else { usual };
        self.next_value += 1;
        Value {
            id: self.next_value,
            bytes: min + self.rng.below(u64::from(most - min + 1)) as u32,
        }
    }

    fn change(&mut self) -> Change {
        match self.rng.below(4) {
            0 if self.of.shape.decides => Change::Keep,
            1 if self.of.shape.decides => Change::Delete,
            _ => Change::Put(self.value(120)),
        }
    }

    fn write(&mut self, bytes_max: u32) -> TargetOp {
        let key = self.key();
        TargetOp::Write(self.write_of(key, bytes_max))
    }

    fn write_of(&mut self, key: u64, bytes_max: u32) -> KeyWrite {
        if self.of.shape.deletes && self.rng.one_in(4) {
            return KeyWrite::Delete { key };
        }
        KeyWrite::Put {
            key,
            value: self.value(bytes_max),
            expires_ms: 0,
        }
    }

    fn group(&mut self) -> TargetOp {
        let keys = &self.of.keys;
        let left_out = self.rng.below(keys.len() as u64 + 1) as usize;
        let members = keys.iter().enumerate().filter(|(n, _)| *n != left_out);
        let members = members.map(|(_, key)| self.write_of(*key, 120));
        TargetOp::Group(members.collect())
    }
}
