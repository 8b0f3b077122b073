//! HyperLogLogs: PFADD PFCOUNT PFMERGE. Their bytes are in [`super::hll`].

use farbank_store::{GroupDecision, Key, Ops, ReadView, UpdateDecision, Value, ValueMeta};

use super::context::CommandContext;
use super::error::{CommandError, WRONG_TYPE};
use super::hll::{CorruptHll, HyperLogLog, REGISTERS, Registers, cardinality};
use super::strings::STRING;
use crate::protocol::resp::{Args, reply};

const NO_HLL: CommandError =
    CommandError::Fixed("WRONGTYPE Key is not a valid HyperLogLog string value.");
const CORRUPT: CommandError = CommandError::Fixed("INVALIDOBJ Corrupted HLL object detected");
/// Most HyperLogLogs that a worker reads for one request.
const SHORT_KEYS: usize = 64;

impl From<CorruptHll> for CommandError {
    fn from(_: CorruptHll) -> CommandError {
        CORRUPT
    }
}

fn parse(bytes: &[u8]) -> Result<HyperLogLog, CommandError> {
    HyperLogLog::from_bytes(bytes.to_vec()).ok_or(NO_HLL)
}

/// Returns the decision to store `hll` with the expiry of the old value.
fn stored(hll: HyperLogLog, meta: ValueMeta) -> UpdateDecision {
    UpdateDecision::Put {
        bytes: hll.into_bytes(),
        expires_ms: meta.expires_ms,
        flags: meta.flags,
        kind: STRING,
    }
}

/// `PFADD key [element ...]`
pub(super) fn pfadd(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let key = ctx.key(args.at(1));
    ctx.refuse_long_value(key)?;
    let mut outcome = Ok(false);
    ctx.update(key, &mut |item| {
        let added = match item {
            None => Ok((HyperLogLog::new(), true)),
            Some(item) if item.meta.type_of() != STRING => Err(WRONG_TYPE),
            Some(item) => parse(item.bytes).map(|hll| (hll, false)),
        };
        let added = added.and_then(|(mut hll, mut changed)| {
            for element in args.from(2) {
                changed |= hll.add(element)?;
            }
            Ok((hll, changed))
        });
        match added {
            Ok((mut hll, true)) => {
                outcome = Ok(true);
                hll.invalidate();
                stored(hll, item.map(|item| item.meta).unwrap_or_default())
            }
            other => {
                outcome = other.map(|_| false);
                UpdateDecision::Keep
            }
        }
    })?;
    reply::integer(ctx.out, i64::from(outcome?));
    Ok(())
}

/// Estimates the cardinality of one HyperLogLog.
fn count(hll: &HyperLogLog) -> Result<u64, CommandError> {
    let mut registers = [0; REGISTERS];
    hll.merge_into(&mut registers)?;
    Ok(cardinality(&registers))
}

fn reply_count(ctx: &mut CommandContext<'_>, count: u64) {
    // Redis prints the 64 bits with a sign.
    reply::integer(ctx.out, count.cast_signed());
}

/// `PFCOUNT key [key ...]`
pub(super) fn pfcount(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    if args.len() == 2 {
        return pfcount_one(ctx, ctx.key(args.at(1)));
    }
    if args.len() > SHORT_KEYS && !ctx.executes_long {
        return Err(CommandError::Long);
    }
    let db = ctx.client.db;
    let keys: Vec<_> = args.from(1).map(|bytes| Key { db, bytes }).collect();
    let mut registers = [0; REGISTERS];
    let (mut outcome, mut read_bytes, mut found) = (Ok(()), 0, Vec::new());
    let reader = ctx.string_reader();
    // A group reads the keys as of one moment, and one value is in memory at a time.
    ctx.grouped(&keys, &mut |ops| {
        let (mut reader, mut bytes) = (reader.clone(), Vec::new());
        (registers, read_bytes) = ([0; REGISTERS], 0);
        found.clear();
        for &key in &keys {
            outcome = match reader.append(ops, key, ReadView::Pending, &mut bytes) {
                Err(CommandError::Store(error)) => return Err(error),
                Err(other) => Err(other),
                Ok(None) => Ok(()),
                Ok(Some(_)) => parse(&bytes).and_then(|hll| Ok(hll.merge_into(&mut registers)?)),
            };
            if outcome.is_err() {
                break;
            }
            found.push(!bytes.is_empty());
            read_bytes += bytes.len();
            bytes.clear();
        }
        Ok(GroupDecision::Abandon)
    })?;
    ctx.request.hidden_bytes += read_bytes;
    found
        .into_iter()
        .for_each(|is_there| ctx.count_lookup(is_there));
    outcome?;
    reply_count(ctx, cardinality(&registers));
    Ok(())
}

/// PFCOUNT of one key, which caches the cardinality in the value.
fn pfcount_one(ctx: &mut CommandContext<'_>, key: Key<'_>) -> Result<(), CommandError> {
    let Some(bytes) = ctx.read_string(key)? else {
        reply::integer(ctx.out, 0);
        return Ok(());
    };
    let hll = parse(&bytes)?;
    if let Some(cached) = hll.cached() {
        reply_count(ctx, cached);
        return Ok(());
    }
    let read = count(&hll)?;
    let count = cache_cardinality(ctx, key)?.unwrap_or(read);
    reply_count(ctx, count);
    Ok(())
}

/// Caches the cardinality of the newest value of `key`, and returns it. `Ok(None)`: the store takes no writes, so the
/// value stays as it is.
fn cache_cardinality(
    ctx: &mut CommandContext<'_>,
    key: Key<'_>,
) -> Result<Option<u64>, CommandError> {
    let was_marked = ctx.mark.is_some();
    ctx.mark.get_or_insert(ctx.request.reply_start); // SRV-CMD-1: this is a write.
    let mut outcome = Ok(0);
    let updated = ctx.update(key, &mut |item| {
        let Some(item) = item else {
            outcome = Ok(0);
            return UpdateDecision::Keep;
        };
        let counted = match item.meta.type_of() {
            STRING => parse(item.bytes).and_then(|hll| Ok((count(&hll)?, hll))),
            _ => Err(WRONG_TYPE),
        };
        match counted {
            Ok((count, mut hll)) => {
                outcome = Ok(count);
                hll.set_cached(count);
                stored(hll, item.meta)
            }
            Err(error) => {
                outcome = Err(error);
                UpdateDecision::Keep
            }
        }
    });
    if updated.is_err() {
        if !was_marked {
            *ctx.mark = None;
        }
        return Ok(None);
    }
    outcome.map(Some)
}

/// `PFMERGE destination [key ...]`
pub(super) fn pfmerge(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    if args.len() > SHORT_KEYS && !ctx.executes_long {
        return Err(CommandError::Long);
    }
    let db = ctx.client.db;
    let keys: Vec<_> = args.from(1).map(|bytes| Key { db, bytes }).collect();
    let (mut failure, mut read_bytes) = (None, 0);
    let reader = ctx.string_reader();
    ctx.grouped(&keys, &mut |ops| {
        let (mut reader, mut old, mut sources) = (reader.clone(), None, MergedSources::new());
        (failure, read_bytes) = (None, 0);
        let merge = |ops: &mut dyn Ops| {
            let mut bytes = Vec::new();
            for (at, &key) in keys.iter().enumerate() {
                let found = reader.append(ops, key, ReadView::Pending, &mut bytes)?;
                let Some(meta) = found else { continue };
                let hll = parse(&bytes)?;
                sources.add(&hll)?;
                if at == 0 {
                    old = Some((meta, hll));
                }
                read_bytes += bytes.len();
                bytes.clear();
            }
            let (meta, base) = old
                .take()
                .unwrap_or_else(|| (ValueMeta::default(), HyperLogLog::new()));
            Ok((meta, sources.into_hll(base)?.into_bytes()))
        };
        let (meta, merged) = match merge(ops) {
            Ok(merged) => merged,
            Err(CommandError::Store(error)) => return Err(error),
            Err(other) => {
                failure = Some(other);
                return Ok(GroupDecision::Abandon);
            }
        };
        let value = Value {
            bytes: &merged,
            expires_ms: meta.expires_ms,
            flags: meta.flags,
            kind: STRING,
        };
        ops.put(keys[0], value)?;
        Ok(GroupDecision::Apply)
    })?;
    ctx.request.hidden_bytes += read_bytes;
    if let Some(error) = failure {
        return Err(error);
    }
    reply::ok(ctx.out);
    Ok(())
}

/// The registers of several HyperLogLogs, merged.
struct MergedSources {
    registers: Registers,
    is_dense: bool,
}

impl MergedSources {
    fn new() -> MergedSources {
        MergedSources {
            registers: [0; REGISTERS],
            is_dense: false,
        }
    }

    fn add(&mut self, source: &HyperLogLog) -> Result<(), CorruptHll> {
        self.is_dense |= source.is_dense();
        source.merge_into(&mut self.registers)
    }

    /// Merges the registers into `base`.
    fn into_hll(self, mut base: HyperLogLog) -> Result<HyperLogLog, CorruptHll> {
        if self.is_dense {
            base.make_dense()?;
        }
        for (index, &value) in self.registers.iter().enumerate() {
            if value > 0 {
                base.raise(index, value)?;
            }
        }
        base.invalidate();
        Ok(base)
    }
}
