//! PFDEBUG and PFSELFTEST: HyperLogLogs for tests.

use std::hash::{BuildHasher, RandomState};

use farbank_pm::rng::Rng;
use farbank_store::{Key, UpdateDecision};

use super::context::CommandContext;
use super::error::CommandError;
use super::hll::{
    CorruptHll, HyperLogLog, REGISTER_MAX, REGISTERS, RegisterRun, Registers, SPARSE_BYTES_MAX,
};
use super::hyperloglog::{count, parse};
use super::text::{self, quote};
use super::values::{string_in, string_instead_of};
use crate::buffers::reply::ReplySink;
use crate::protocol::resp::{Args, reply};

const NO_KEY: CommandError = CommandError::Fixed("ERR The specified key does not exist");
const NOT_SPARSE: CommandError = CommandError::Fixed("ERR HLL encoding is not sparse");

/// `PFDEBUG subcommand key`
pub(super) fn pfdebug(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let key = ctx.key(args.at(2));
    let bytes = ctx.read_string(key)?.ok_or(NO_KEY)?;
    let hll = parse(&bytes)?;
    match text::option(args.at(1)).as_slice() {
        b"getreg" => {
            let (hll, _) = dense_at(ctx, key)?;
            reply::array(ctx.out, REGISTERS);
            for register in registers(&hll)? {
                reply::integer(ctx.out, register.into());
            }
        }
        b"decode" => decode(ctx, &hll)?,
        b"encoding" => reply::simple(ctx.out, if hll.is_dense() { "dense" } else { "sparse" }),
        b"todense" => {
            let (_, is_changed) = dense_at(ctx, key)?;
            reply::integer(ctx.out, is_changed.into());
        }
        _ => {
            let text = [
                b"ERR Unknown PFDEBUG subcommand '",
                quote(args.at(1), usize::MAX),
                b"'",
            ];
            return Err(CommandError::Detailed(text.concat()));
        }
    }
    Ok(())
}

/// Makes the HyperLogLog of `key` dense. Returns it, and whether it was sparse.
fn dense_at(
    ctx: &mut CommandContext<'_>,
    key: Key<'_>,
) -> Result<(HyperLogLog, bool), CommandError> {
    ctx.refuse_long_value(key)?;
    let mut outcome = Err(NO_KEY);
    ctx.update(key, &mut |item| {
        outcome = string_in(item).and_then(|bytes| {
            let mut hll = parse(bytes.ok_or(NO_KEY)?)?;
            let was_sparse = !hll.is_dense();
            hll.make_dense()?;
            Ok((hll, was_sparse))
        });
        match &outcome {
            Ok((hll, true)) => string_instead_of(item, hll.clone().into_bytes()),
            _ => UpdateDecision::Keep,
        }
    })?;
    outcome
}

fn registers(hll: &HyperLogLog) -> Result<Registers, CorruptHll> {
    let mut registers = [0; REGISTERS];
    hll.merge_into(&mut registers)?;
    Ok(registers)
}

/// Replies with the runs of a sparse HyperLogLog, as Redis shows them. Damaged runs are shown, too.
fn decode(ctx: &mut CommandContext<'_>, hll: &HyperLogLog) -> Result<(), CommandError> {
    if hll.is_dense() {
        return Err(NOT_SPARSE);
    }
    let bytes = hll.runs().map(|run| shown(run).len() + 1).sum::<usize>();
    reply::bulk_header(ctx.out, bytes.saturating_sub(1));
    for (at, run) in hll.runs().enumerate() {
        if at > 0 {
            ctx.out.extend_from_slice(b" ");
        }
        ctx.out.extend_from_slice(shown(run).as_bytes());
    }
    ctx.out.extend_from_slice(b"\r\n");
    Ok(())
}

fn shown(run: RegisterRun) -> String {
    match (run.value, run.bytes) {
        (0, 1) => format!("z:{}", run.len),
        (0, _) => format!("Z:{}", run.len),
        (value, _) => format!("v:{value},{}", run.len),
    }
}

/// `PFSELFTEST`
pub(super) fn pfselftest(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    if !ctx.executes_long {
        return Err(CommandError::Long);
    }
    let mut random = Rng::new(RandomState::new().hash_one(0));
    test_registers(&mut random)?;
    test_error(random.draw(), &|| ctx.shared.threads.is_stopping())?;
    reply::ok(ctx.out);
    Ok(())
}

fn failed(text: String) -> CommandError {
    CommandError::Detailed(format!("ERR TESTFAILED {text}").into_bytes())
}

/// Checks that the registers of the dense encoding are independent.
fn test_registers(random: &mut Rng) -> Result<(), CommandError> {
    const ROUNDS: usize = 1000;
    for _ in 0..ROUNDS {
        let mut dense = HyperLogLog::new();
        dense.make_dense()?;
        let mut expected = [0; REGISTERS];
        for (index, value) in expected.iter_mut().enumerate() {
            *value = (random.draw() & u64::from(REGISTER_MAX)) as u8;
            dense.raise(index, *value)?;
        }
        let found = registers(&dense)?;
        let wrong = (0..REGISTERS).find(|&at| found[at] != expected[at]);
        if let Some(at) = wrong {
            let (expected, found) = (expected[at], found[at]);
            return Err(failed(format!(
                "Register {at} should be {expected} but is {found}"
            )));
        }
    }
    Ok(())
}

/// Adds up to ten million elements to a dense and a sparse HyperLogLog. At powers of ten, checks that both estimate the
/// same number, with an error of at most six times the standard error.
fn test_error(seed: u64, is_stopping: &dyn Fn() -> bool) -> Result<(), CommandError> {
    const ELEMENTS: u64 = 10_000_000;
    /// A small number of elements has a large error if a few registers collide.
    const SMALL: u64 = 10;
    let (mut dense, mut sparse) = (HyperLogLog::new(), HyperLogLog::new());
    dense.make_dense()?;
    let relative_error = 1.04 / (REGISTERS as f64).sqrt();
    let mut checked = 1;
    for number in 1..=ELEMENTS {
        let element = (number ^ seed).to_le_bytes();
        dense.add(&element)?;
        sparse.add(&element)?;
        if number < checked {
            continue;
        }
        if is_stopping() {
            return Err(CommandError::Fixed("ERR the server is shutting down"));
        }
        if number < SPARSE_BYTES_MAX as u64 / 2 && sparse.is_dense() {
            return Err(failed("sparse encoding not used".into()));
        }
        let estimate = count(&dense)?;
        if estimate != count(&sparse)? {
            return Err(failed("dense/sparse disagree".into()));
        }
        let error_max = match number {
            SMALL => 1,
            number => (relative_error * 6.0 * number as f64).ceil() as u64,
        };
        let error = number.abs_diff(estimate);
        if error > error_max {
            return Err(failed(format!(
                "Too big error. card:{number} abserr:{error}"
            )));
        }
        checked *= 10;
    }
    Ok(())
}
