//! Opens pools that are damaged or forged in ways that the fuzzer chooses.
//!
//! The input is a list of changes to a valid pool. Some damage bytes: then no read may return a value that was never
//! written. Others forge fields with valid checksums, which needs the pool's secret key: then values may be wrong, but
//! opening, reading, writing, cleaning and reopening must end without a panic.
#![no_main]

use farbank_fuzz::Input;
use farbank_fuzz::format::{Bytes, SEGMENT};
use farbank_fuzz::pools::{self, Base, Past, bases, read, write};
use farbank_kv::Kv;
use farbank_pm::Medium;
use farbank_pm::rng::Rng;
use farbank_store::{Error, Session};
use libfuzzer_sys::fuzz_target;

const CHANGES_MAX: usize = 24;

fuzz_target!(|data: &[u8]| run(Input(data)));

fn run(mut input: Input<'_>) {
    let choice = input.number(1);
    let base = &bases()[usize::from(choice & 1 != 0)];
    let mut bytes = match choice & 6 {
        // Arbitrary bytes.
        6 => input.bytes(pools::POOL).to_vec(),
        // A valid superblock, followed by arbitrary bytes.
        4 => {
            let rest = input.bytes(pools::POOL).iter().copied();
            let head = base.bytes[..8192].iter().copied();
            head.chain(rest.chain(std::iter::repeat(0)).take(pools::POOL - 8192))
                .collect()
        }
        _ => base.bytes.clone(),
    };
    let mut forged = choice & 6 == 4;
    let mut past = base.past.clone();
    for _ in 0..CHANGES_MAX {
        if input.is_empty() {
            break;
        }
        forged |= change(&mut input, &mut bytes, base, &mut past);
    }
    use_it(&bytes, base, past, forged);
}

/// Makes one change. Returns whether it forged a field. Adds to `past` the values that reads may return afterwards.
fn change(input: &mut Input<'_>, bytes: &mut Vec<u8>, base: &Base, past: &mut Past) -> bool {
    let kind = input.number(1) % 12;
    let mut pool = Bytes(bytes);
    let segment = |input: &mut Input<'_>, pool: &Bytes<'_>| input.below(pool.segments());
    match kind {
        0..=4 => damage(kind, input, &mut pool, base, past),
        5 => {
            let len = input.number(3) as usize;
            pool.0.truncate(len / 8 * 8);
        }
        6 => {
            let (word, value) = (input.below(62), input.number(8));
            pool.forge_superblock(word * 8, value);
        }
        7 => {
            let (at, ends) = (segment(input, &pool), input.number(1));
            let generation = input.number(8);
            pool.forge_generation(at, [ends & 1 == 0, ends & 2 == 0], generation);
        }
        8 => {
            let (at, purpose) = (segment(input, &pool), input.number(1) as u8);
            pool.forge_opened(at, purpose, input.number(3) as u32);
        }
        9 => {
            let at = segment(input, &pool);
            pool.forge_sealed(at, input.below(SEGMENT + 64) as u32);
        }
        10 => {
            let records = pool.records(segment(input, &pool));
            let which = input.below(records.len());
            let (word, value) = (1 + input.below(8), input.number(8));
            if let Some(at) = records.get(which) {
                pool.forge_record(*at, word, value);
            }
        }
        _ => {
            let pieces = pool.snapshot();
            let which = input.below(pieces.len());
            let (word, value) = (input.below((SEGMENT - 128) / 8), input.number(8));
            if let Some(segment) = pieces.get(which) {
                pool.forge_snapshot(*segment, word, value);
            }
        }
    }
    kind > 5
}

/// Damages some bytes without knowledge of the pool's secret key.
fn damage(kind: u64, input: &mut Input<'_>, pool: &mut Bytes<'_>, base: &Base, past: &mut Past) {
    let len = pool.0.len();
    if len == 0 {
        return;
    }
    let at = input.number(3) as usize % len;
    match kind {
        0 => {
            let count = 1 + input.below(16);
            pool.write(at, input.bytes(count));
        }
        1 => pool.0[at] ^= 1 << input.below(8),
        2 => {
            let (count, byte) = (input.below(2 * SEGMENT), input.number(1) as u8);
            pool.write(at, &vec![byte; count]);
        }
        3 => {
            let from = input.number(3) as usize % len / 16 * 16;
            let run = input.below(SEGMENT).min(len - from);
            let bytes = pool.0[from..from + run].to_vec();
            pool.write(at / 16 * 16, &bytes);
        }
        // Copies the same place of the other pool, which has the same id but another history. Its values are known.
        _ => {
            let Base {
                bytes: other,
                past: then,
                ..
            } = &bases()[usize::from(base.closed)];
            past.take_in(then);
            let run = input.below(2 * SEGMENT);
            let from = at.min(other.len());
            let to = (at + run).min(other.len());
            pool.write(at, &other[from..to]);
        }
    }
}

/// Opens the pool, reads and writes, kills it, and opens it again.
fn use_it(bytes: &[u8], base: &Base, mut past: Past, forged: bool) {
    let Ok((sim, kv)) = pools::open(pools::image(bytes, base)) else {
        return;
    };
    judge(
        &kv,
        &past,
        forged,
        base.closed && kv.opened().clean && !is_damaged(&kv),
    );
    let mut rng = Rng::new(7);
    let mut session = kv.session();
    for _ in 0..4 {
        let mut tried = past.clone();
        match write(&mut *session, &mut tried, &mut rng) {
            Ok(()) => past = tried,
            Err(Error::Full | Error::Damaged(_)) => {}
            Err(Error::KeyTooLong { .. } | Error::ValueTooLong { .. }) if forged => {}
            Err(error) => panic!("a write failed: {error}"),
        }
        kv.clean().expect("memory does not fail");
    }
    drop(session);
    judge(&kv, &past, forged, false);
    let verified = kv.verify();
    let sound = !forged && bytes == base.bytes;
    assert!(!sound || verified.is_ok(), "{verified:?}");
    let image = sim.visible();
    drop(kv);
    let (_, kv) = pools::open(image).expect("a pool that the engine has used opens again");
    judge(&kv, &past, forged, false);
    match kv.close() {
        // Damaged segments are not free, so a damaged pool may lack the space for a snapshot.
        Ok(_) | Err(Error::NoSnapshot { .. }) => {}
        Err(error) => panic!("a close failed: {error}"),
    }
}

fn is_damaged<M: Medium>(kv: &Kv<M>) -> bool {
    !kv.opened().damage.is_empty()
}

/// Reads every key, by name and by scanning. Unless a field was forged, each value must have been written before. With
/// `strict` it must be the last value written.
fn judge<M: Medium>(kv: &Kv<M>, past: &Past, forged: bool, strict: bool) {
    let mut session = kv.session();
    for name in past.0.keys().map(Vec::as_slice).chain([&b"absent"[..]]) {
        match read(&mut *session, name) {
            Ok(_) if forged => {}
            Ok(value) if strict => assert!(
                value.as_ref() == past.latest(name),
                "an older value of {} was read, and no damage was reported",
                name.escape_ascii()
            ),
            Ok(value) => assert!(
                past.knows(name, &value),
                "a value that was never written: {} is {value:?}",
                name.escape_ascii()
            ),
            Err(Error::Damaged(_)) => {}
            Err(error) => panic!("a read failed: {error}"),
        }
    }
    scan(&mut *session, past, forged);
}

fn scan(session: &mut dyn Session, past: &Past, forged: bool) {
    let (mut cursor, mut rounds) = (0, 0);
    loop {
        let mut each = |name: &[u8], _: &_| {
            let known = past.0.contains_key(name);
            assert!(
                forged || known,
                "a key that was never written: {}",
                name.escape_ascii()
            );
        };
        cursor = session.scan(0, cursor, 10, &mut each).expect("a scan");
        rounds += 1;
        if cursor == 0 {
            return;
        }
        assert!(rounds < 1_000_000, "a scan does not end");
    }
}
