//! An engine as the crash explorer sees it: `farbank check crash --target v2`.
//!
//! A [`Recipe`] says how an engine is made on simulated memory, [`EngineTarget`] makes it a target. Keys of
//! the explorer are numbers; the engine's are 16 bytes of which every one differs between two numbers' keys,
//! as the contest's random ones did. Engines have neither deletes nor batches: a set is durable when it returns.
//!
//! What an engine would show under a key that nobody wrote is not seen: it can be asked for keys only.

use farbank_check::target::{
    KeyWrite, OpAnswer, Target, TargetOp, TargetShape, TargetSubject, Value,
};
use farbank_pm::fault::NamedFault;
use farbank_pm::sim::{Rng, Sim};

use crate::engine::{Engine, Error, KEY_BYTES, Key, Worker};
use crate::limits::ContestLimits;

/// How an engine is made on simulated memory.
pub trait EngineConfig: Sync {
    /// Its name in reports and on the command line.
    fn name(&self) -> &'static str;

    /// Whether `farbank check crash --target NAME` makes it like this.
    fn has_command(&self) -> bool {
        false
    }

    /// The terms it is made for; the pool, the keys, the values and the workers are these.
    fn terms(&self) -> ContestLimits {
        explorer_terms()
    }

    /// Deviations it has by name.
    fn faults(&self) -> &'static [NamedFault] {
        &[]
    }

    /// A new engine on `sim`, which is zeros.
    fn create(&self, sim: Sim) -> Result<Box<dyn Engine>, String>;

    /// The engine that a close, a kill or a power cut left in `sim`.
    fn open(&self, sim: Sim) -> Result<Box<dyn Engine>, String>;
}

impl<R: EngineConfig + ?Sized> EngineConfig for &R {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn has_command(&self) -> bool {
        (**self).has_command()
    }

    fn terms(&self) -> ContestLimits {
        (**self).terms()
    }

    fn faults(&self) -> &'static [NamedFault] {
        (**self).faults()
    }

    fn create(&self, sim: Sim) -> Result<Box<dyn Engine>, String> {
        (**self).create(sim)
    }

    fn open(&self, sim: Sim) -> Result<Box<dyn Engine>, String> {
        (**self).open(sim)
    }
}

/// Terms that suit the explorer: 128 KiB, 12 keys and one more in 16 chains, two workers that take turns, and
/// values of up to 400 bytes, so that blocks of many sizes are freed and used again within a run.
#[must_use]
pub fn explorer_terms() -> ContestLimits {
    const FAR_BYTES: u64 = 128 << 10;
    ContestLimits {
        threads: 2,
        operations: 200,
        keys: 13,
        far_bytes: FAR_BYTES,
        dram_bytes: u64::MAX,
        live_bytes_max: FAR_BYTES / 4,
        hash_bits: 4,
        value_bytes: (80, 400),
    }
}

/// The 16 bytes that stand for the explorer's key `number`.
#[must_use]
pub fn key_of(number: u64) -> Key {
    let mut rng = Rng::new(number);
    let mut key = [0; KEY_BYTES];
    for word in key.chunks_exact_mut(8) {
        word.copy_from_slice(&rng.draw().to_le_bytes());
    }
    key
}

/// An engine as a target of the explorer.
#[derive(Clone, Copy, Debug)]
pub struct EngineTarget<R>(pub R);

impl<R: EngineConfig> Target for EngineTarget<R> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn has_command(&self) -> bool {
        self.0.has_command()
    }

    fn faults(&self) -> &'static [NamedFault] {
        self.0.faults()
    }

    fn shape(&self) -> TargetShape {
        let terms = self.0.terms();
        let (min, max) = terms.value_bytes;
        TargetShape {
            pool_bytes: terms.far_bytes,
            // A probe of the explorer stores one key more.
            keys: terms.keys - 1,
            value_bytes: (min as u32, max as u32),
            sessions: terms.threads,
            deletes: false,
            ..TargetShape::default()
        }
    }

    fn create(&self, sim: Sim, _now_ms: u64) -> Result<Box<dyn TargetSubject>, String> {
        Ok(self.subject(&*self.0.create(sim)?))
    }

    fn open(&self, sim: Sim, _now_ms: u64) -> Result<Box<dyn TargetSubject>, String> {
        Ok(self.subject(&*self.0.open(sim)?))
    }
}

impl<R: EngineConfig> EngineTarget<R> {
    fn subject(&self, engine: &dyn Engine) -> Box<dyn TargetSubject> {
        let terms = self.0.terms();
        Box::new(EngineSubject {
            workers: (0..terms.threads).map(|_| engine.worker()).collect(),
            keys: terms.keys,
        })
    }
}

/// An open engine: its workers take turns, and keep it open.
struct EngineSubject {
    workers: Vec<Box<dyn Worker>>,
    /// Keys there can be: `1..=keys`.
    keys: u64,
}

impl EngineSubject {
    fn get(&mut self, session: usize, key: u64) -> Result<Option<Value>, String> {
        let mut out = Vec::new();
        let found = self.workers[session].get(&key_of(key), &mut out);
        let value = found.then(|| Value::decode(&out)).transpose();
        value.map_err(|e| format!("key {key}: {e}"))
    }
}

impl TargetSubject for EngineSubject {
    fn apply(&mut self, session: usize, op: &TargetOp) -> Result<OpAnswer, String> {
        match op {
            TargetOp::Write(KeyWrite::Put { key, value, .. }) => {
                match self.workers[session].set(&key_of(*key), &value.encode()) {
                    Ok(()) => Ok(OpAnswer::Done),
                    Err(Error::Full) => Ok(OpAnswer::Refused),
                    Err(error) => Err(error.to_string()),
                }
            }
            TargetOp::Get { key, .. } => Ok(OpAnswer::Found(self.get(session, *key)?)),
            other => Err(format!("an engine of the contest has no {other:?}")),
        }
    }

    fn contents(&mut self) -> Result<Vec<(u64, Value)>, String> {
        let all = (1..=self.keys).filter_map(|key| {
            let value = self.get(0, key).transpose()?;
            Some(value.map(|value| (key, value)))
        });
        all.collect()
    }
}

/// An engine as a [`Recipe`] hands it out.
pub(crate) fn boxed<E: Engine + 'static>(
    opened: Result<E, impl ToString>,
) -> Result<Box<dyn Engine>, String> {
    match opened {
        Ok(engine) => Ok(Box::new(engine)),
        Err(error) => Err(error.to_string()),
    }
}
