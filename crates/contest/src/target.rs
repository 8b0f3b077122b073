//! Adapter of an engine for the crash explorer: `farbank check crash --target v2`.
//!
//! An [`EngineConfig`] makes an engine on simulated memory, and [`EngineTarget`] makes it a target of the explorer.
//! The explorer's keys are numbers. The engine's keys are 16 bytes long and, like the contest's random keys, differ in
//! every byte. Engines have neither deletes nor batches: a set is durable when it returns.
//!
//! The explorer cannot detect a key that was never written: an engine offers lookups only, and no iteration.

use farbank_check::Violation;
use farbank_check::target::{
    KeyWrite, OpAnswer, Target, TargetOp, TargetShape, TargetSubject, Value,
};
use farbank_pm::fault::NamedFault;
use farbank_pm::rng::Rng;
use farbank_pm::sim::Sim;

use crate::engine::{Engine, Error, KEY_BYTES, Key, OpenError, Worker};
use crate::limits::ContestLimits;

/// Recipe for an engine on simulated memory.
pub trait EngineConfig: Sync {
    /// Returns the target's name in reports and on the command line.
    fn name(&self) -> &'static str;

    /// Returns whether `farbank check crash --target NAME` uses this configuration.
    fn has_command(&self) -> bool {
        false
    }

    /// Returns the limits of the engine. They also set the explorer's pool size, keys, values and sessions.
    fn limits(&self) -> ContestLimits {
        explorer_limits()
    }

    /// Returns the faults that a run can switch on.
    fn faults(&self) -> &'static [NamedFault] {
        &[]
    }

    /// Creates a new engine on `sim`, which holds zeros.
    ///
    /// # Errors
    /// The engine refuses these limits.
    fn create(&self, sim: Sim) -> Result<Box<dyn Engine>, OpenError>;

    /// Opens the engine that a close, a kill or a power cut left in `sim`.
    ///
    /// # Errors
    /// The engine refuses what it finds.
    fn open(&self, sim: Sim) -> Result<Box<dyn Engine>, OpenError>;
}

impl<R: EngineConfig + ?Sized> EngineConfig for &R {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn has_command(&self) -> bool {
        (**self).has_command()
    }

    fn limits(&self) -> ContestLimits {
        (**self).limits()
    }

    fn faults(&self) -> &'static [NamedFault] {
        (**self).faults()
    }

    fn create(&self, sim: Sim) -> Result<Box<dyn Engine>, OpenError> {
        (**self).create(sim)
    }

    fn open(&self, sim: Sim) -> Result<Box<dyn Engine>, OpenError> {
        (**self).open(sim)
    }
}

/// Returns limits that suit the explorer: 128 KiB of far memory, 13 keys in 16 chains, two workers that take turns,
/// and values of up to 400 bytes. A run then frees and reuses blocks of many sizes. The explorer uses 12 of the keys;
/// its probe stores the thirteenth.
#[must_use]
pub fn explorer_limits() -> ContestLimits {
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

/// Returns the engine's key for the explorer's key `number`.
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
        let terms = self.0.limits();
        let (min, max) = terms.value_bytes;
        TargetShape {
            pool_bytes: terms.far_bytes,
            // The explorer's probe stores one more key.
            keys: terms.keys - 1,
            value_bytes: (min as u32, max as u32),
            sessions: terms.threads,
            deletes: false,
            ..TargetShape::default()
        }
    }

    fn create(&self, sim: Sim, _now_ms: u64) -> Result<Box<dyn TargetSubject>, Violation> {
        Ok(self.subject(&*self.0.create(sim)?))
    }

    fn open(&self, sim: Sim, _now_ms: u64) -> Result<Box<dyn TargetSubject>, Violation> {
        Ok(self.subject(&*self.0.open(sim)?))
    }
}

impl<R: EngineConfig> EngineTarget<R> {
    fn subject(&self, engine: &dyn Engine) -> Box<dyn TargetSubject> {
        let terms = self.0.limits();
        Box::new(EngineSubject {
            workers: (0..terms.threads).map(|_| engine.worker()).collect(),
            keys: terms.keys,
        })
    }
}

/// An open engine. Its workers take turns and keep it open.
struct EngineSubject {
    workers: Vec<Box<dyn Worker>>,
    /// Number of possible keys, which are `1..=keys`.
    keys: u64,
}

impl EngineSubject {
    fn get(&mut self, session: usize, key: u64) -> Result<Option<Value>, Violation> {
        let mut out = Vec::new();
        let found = self.workers[session].get(&key_of(key), &mut out);
        let value = found.then(|| Value::decode(&out)).transpose();
        value.map_err(|e| e.context(format_args!("key {key}")))
    }
}

impl TargetSubject for EngineSubject {
    fn apply(&mut self, session: usize, op: &TargetOp) -> Result<OpAnswer, Violation> {
        match op {
            TargetOp::Write(KeyWrite::Put { key, value, .. }) => {
                match self.workers[session].set(&key_of(*key), &value.encode()) {
                    Ok(()) => Ok(OpAnswer::Done),
                    Err(Error::Full) => Ok(OpAnswer::Refused),
                    Err(error) => Err(error.into()),
                }
            }
            TargetOp::Get { key, .. } => Ok(OpAnswer::Found(self.get(session, *key)?)),
            other => Err(Violation::new(format!(
                "contest engines do not support {other:?}; use only puts and gets"
            ))),
        }
    }

    fn contents(&mut self) -> Result<Vec<(u64, Value)>, Violation> {
        let all = (1..=self.keys).filter_map(|key| {
            let value = self.get(0, key).transpose()?;
            Some(value.map(|value| (key, value)))
        });
        all.collect()
    }
}

/// Boxes an engine for [`EngineConfig::create`] and [`EngineConfig::open`].
pub(crate) fn box_engine<E: Engine + 'static>(
    opened: Result<E, OpenError>,
) -> Result<Box<dyn Engine>, OpenError> {
    Ok(Box::new(opened?))
}
