//! Backups under random and priority-based schedules: threads move money between keys while backups are taken.
//!
//! Needs a build with `--cfg shuttle`; `cargo xtask suites schedules` runs it.
#![cfg(shuttle)]

use std::collections::HashMap;

use farbank_kv::{CleaningMode, Config, Kv};
use farbank_pm::media::Mapped;
use farbank_pm::sync::shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use farbank_pm::sync::shuttle::{self, Runner};
use farbank_pm::sync::{Arc, thread};
use farbank_store::explored::IDENTITY;
use farbank_store::{
    ConflictPolicy, GroupDecision, Key, Ops, Session, Store, UpdateDecision, Value,
};

const SCHEDULES: usize = 2_000;
const SEED: u64 = 0x10000;
const STACK_BYTES: usize = 1 << 20;
const ACCOUNTS: [&[u8]; 3] = [b"a", b"b", b"c"];
const BALANCE: i64 = 10;

fn key(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}

fn value(bytes: &[u8]) -> Value<'_> {
    Value {
        bytes,
        ..Value::default()
    }
}

fn number_of(bytes: &[u8]) -> i64 {
    std::str::from_utf8(bytes).unwrap().parse().unwrap()
}

fn transfer(session: &mut dyn Session, from: &[u8], to: &[u8], amount: i64) {
    let keys = [key(from), key(to)];
    let body = &mut |ops: &mut dyn Ops| {
        for (key, change) in keys.iter().zip([-amount, amount]) {
            ops.update(*key, &mut |item| UpdateDecision::Put {
                bytes: (number_of(item.unwrap().bytes) + change)
                    .to_string()
                    .into_bytes(),
                expires_ms: 0,
                flags: 0,
                kind: 0,
            })?;
        }
        Ok(GroupDecision::Apply)
    };
    session.group(&keys, body).unwrap();
}

/// Two steps, and transfers around them, in batches of one or two.
fn write(kv: &Kv<Mapped>, writer: u8) {
    let mut session = kv.session();
    session.on_conflict(ConflictPolicy::Commit);
    let (first, second) = ([b'1', writer], [b'2', writer]);
    for step in ["1", "2"] {
        let (from, to) = (usize::from(writer), usize::from(writer + 1) % 3);
        transfer(
            &mut *session,
            ACCOUNTS[from],
            ACCOUNTS[to],
            1 + i64::from(writer),
        );
        session.put(key(&first), value(step.as_bytes())).unwrap();
        if writer == 0 {
            session.commit().unwrap();
        }
        session
            .put_durable(key(&second), value(step.as_bytes()))
            .unwrap();
    }
    session.commit().unwrap();
}

fn check(found: &HashMap<Vec<u8>, i64>) {
    let sum: i64 = ACCOUNTS.iter().map(|account| found[*account]).sum();
    assert_eq!(sum, 3 * BALANCE, "half a transfer: {found:?}");
    for writer in 0..2_u8 {
        let step = |n| found.get(&[n, writer][..]).copied().unwrap_or(0);
        let (first, second) = (step(b'1'), step(b'2'));
        assert!(
            first == second || first == second + 1,
            "writer {writer}: a later write without an earlier one: {found:?}"
        );
    }
}

fn run() {
    let config = Config {
        cleaning: CleaningMode::Inline,
        ..Config::default()
    };
    let medium = Mapped::anonymous(256 << 10).unwrap();
    let kv = Arc::new(Kv::create_as(medium, 4 << 10, IDENTITY, config).unwrap());
    let mut session = kv.session();
    for account in ACCOUNTS {
        let balance = BALANCE.to_string();
        session
            .put_durable(key(account), value(balance.as_bytes()))
            .unwrap();
    }
    let writers: Vec<_> = (0..2)
        .map(|writer| {
            let kv = Arc::clone(&kv);
            thread::spawn(move || write(&kv, writer))
        })
        .collect();
    for _ in 0..2 {
        let mut backup = kv.backup().unwrap();
        let mut found = HashMap::new();
        while backup
            .step(1, &mut |key, item| {
                let before = found.insert(key.bytes.to_vec(), number_of(item.bytes));
                assert_eq!(before, None, "passed twice");
            })
            .unwrap()
        {}
        check(&found);
    }
    for writer in writers {
        writer.join().unwrap();
    }
}

fn check_schedules(scheduler: impl Scheduler + 'static) {
    let mut config = shuttle::Config::new();
    config.stack_size = STACK_BYTES;
    Runner::new(scheduler, config).run(run);
}

#[test]
fn backups_are_of_one_moment_under_random_schedules() {
    check_schedules(RandomScheduler::new_from_seed(SEED, SCHEDULES));
}

#[test]
fn backups_are_of_one_moment_under_schedules_by_priorities() {
    check_schedules(PctScheduler::new_from_seed(SEED, 3, SCHEDULES));
}
