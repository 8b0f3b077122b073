//! Tests of backups: each is the store of one moment, while sessions write.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use farbank_kv::{CleaningMode, Config, Kv, segment_bytes_for};
use farbank_pm::Kind;
use farbank_pm::Medium;
use farbank_pm::media::{AnyMedium, Mapped, OpenOptions, create_path};
use farbank_store::{
    Backup, BackupError, ConflictPolicy, Error, GroupDecision, Key, Ops, ReadView, RoomReply,
    Session, Store, UpdateDecision, Value,
};

const ACCOUNTS: u64 = 300;
const BALANCE: i64 = 1000;
const WRITERS: u64 = 3;
/// Keys of each writer's own sequence. The writer sets them in turn to 1, 2, 3, ...
const STEPS: u64 = 40;

fn key(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}

fn value(bytes: &[u8]) -> Value<'_> {
    Value {
        bytes,
        ..Value::default()
    }
}

fn account(number: u64) -> Vec<u8> {
    format!("account:{number}").into_bytes()
}

fn step_key(writer: u64, number: u64) -> Vec<u8> {
    format!("step:{writer}:{number}").into_bytes()
}

/// A deterministic source of numbers below a bound.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }
}

fn number_of(item: &[u8]) -> i64 {
    std::str::from_utf8(item).unwrap().trim().parse().unwrap()
}

fn create<M: Medium>(medium: M, bytes: u64) -> Kv<M> {
    let config = Config {
        cleaning: CleaningMode::Background,
        ..Config::default()
    };
    Kv::create(medium, segment_bytes_for(bytes), config).unwrap()
}

/// Reads a whole backup.
fn read_backup<M: Medium>(kv: &Kv<M>, count: usize) -> Result<HashMap<Vec<u8>, Vec<u8>>, Error> {
    let mut backup = kv.backup()?;
    let mut found = HashMap::new();
    let mut twice = Vec::new();
    loop {
        let going = backup.step(count, &mut |key, item| {
            if found
                .insert(key.bytes.to_vec(), item.bytes.to_vec())
                .is_some()
            {
                twice.push(key.bytes.to_vec());
            }
        })?;
        if !going {
            break;
        }
    }
    assert_eq!(backup.damaged(), 0);
    assert!(
        twice.is_empty(),
        "passed twice: {}",
        twice[0].escape_ascii()
    );
    Ok(found)
}

/// Moves money between two accounts.
fn transfer(session: &mut dyn Session, numbers: &mut Numbers) {
    let (from, to) = (
        account(numbers.below(ACCOUNTS)),
        account(numbers.below(ACCOUNTS)),
    );
    if from == to {
        return;
    }
    let amount = numbers.below(50) as i64;
    let padding = numbers.below(40) as usize;
    let keys = [key(&from), key(&to)];
    session
        .group(&keys, &mut |ops: &mut dyn Ops| {
            for (key, change) in keys.iter().zip([-amount, amount]) {
                ops.update(*key, &mut |item| {
                    let balance = item.map_or(0, |item| number_of(item.bytes)) + change;
                    UpdateDecision::Put {
                        bytes: format!("{balance}{}", " ".repeat(padding)).into_bytes(),
                        expires_ms: 0,
                        flags: 0,
                        kind: 0,
                    }
                })?;
            }
            Ok(GroupDecision::Apply)
        })
        .unwrap();
}

/// Writes the next steps of a writer: plain, durable, or deleting and writing again.
fn take_steps(session: &mut dyn Session, writer: u64, next: &mut u64, numbers: &mut Numbers) {
    for _ in 0..1 + numbers.below(4) {
        *next += 1;
        let name = step_key(writer, *next % STEPS);
        let text = next.to_string();
        match numbers.below(3) {
            0 => drop(session.put(key(&name), value(text.as_bytes())).unwrap()),
            1 => drop(
                session
                    .put_durable(key(&name), value(text.as_bytes()))
                    .unwrap(),
            ),
            _ => {
                let put = UpdateDecision::Put {
                    bytes: text.into_bytes(),
                    expires_ms: 0,
                    flags: 0,
                    kind: 0,
                };
                session.update(key(&name), &mut |_| put.clone()).unwrap();
            }
        }
    }
}

/// One writer until `stop`: transfers, steps, and commits now and then.
fn write<M: Medium>(kv: &Kv<M>, writer: u64, stop: &AtomicBool, written: &AtomicU64) {
    let mut session = kv.session();
    session.on_conflict(ConflictPolicy::Commit);
    let (mut numbers, mut next) = (Numbers(writer + 1), 0);
    while !stop.load(Ordering::Relaxed) {
        if writer == 0 {
            // Each write is a batch by itself, on the short path where there is one.
            next += 1;
            let (name, text) = (step_key(writer, next % STEPS), next.to_string());
            let written = session.put_durable(key(&name), value(text.as_bytes()));
            let (_, ticket) = written.unwrap();
            session.durable(ticket).unwrap();
            continue;
        }
        transfer(&mut *session, &mut numbers);
        take_steps(&mut *session, writer, &mut next, &mut numbers);
        written.fetch_add(1, Ordering::Relaxed);
        if numbers.below(3) == 0 {
            let ticket = session.commit().unwrap();
            if numbers.below(2) == 0 {
                session.wait(ticket).unwrap();
            } else {
                session.durable(ticket).unwrap();
            }
        }
    }
    let ticket = session.commit().unwrap();
    session.wait(ticket).unwrap();
}

/// Checks that a backup is of one moment.
fn check(found: &HashMap<Vec<u8>, Vec<u8>>, round: usize) {
    let balances = (0..ACCOUNTS).map(|n| number_of(&found[&account(n)]));
    let sum: i64 = balances.sum();
    assert_eq!(
        sum,
        ACCOUNTS as i64 * BALANCE,
        "round {round}: half a transfer"
    );
    for writer in 0..WRITERS {
        let steps: HashMap<u64, i64> = (0..STEPS)
            .filter_map(|n| Some((n, number_of(found.get(&step_key(writer, n))?))))
            .collect();
        let newest = steps.values().copied().max().unwrap_or(0) as u64;
        for (slot, number) in steps {
            // The newest step that the writer took before `newest` for this key.
            let expected = newest - (newest % STEPS + STEPS - slot) % STEPS;
            assert_eq!(
                number as u64, expected,
                "round {round}: writer {writer} reached {newest}, but key {slot} has {number}"
            );
        }
    }
}

/// Takes backups while writers run.
fn backups_are_of_one_moment<M: Medium>(kv: &Kv<M>, rounds: usize) {
    let mut session = kv.session();
    for number in 0..ACCOUNTS {
        let balance = BALANCE.to_string();
        session
            .put(key(&account(number)), value(balance.as_bytes()))
            .unwrap();
    }
    let ticket = session.commit().unwrap();
    session.wait(ticket).unwrap();
    drop(session);
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (stop, written) = (&stop, &written);
            scope.spawn(move || write(kv, writer, stop, written));
        }
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..rounds {
                let from = written.load(Ordering::Relaxed);
                let found = read_backup(kv, 1 + round % 7).unwrap();
                check(&found, round);
                while written.load(Ordering::Relaxed) < from + 20 {
                    thread::yield_now();
                }
            }
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = checked {
            std::panic::resume_unwind(panic);
        }
    });
    check(&read_backup(kv, 100).unwrap(), usize::MAX);
    kv.verify().unwrap();
}

#[test]
fn backups_during_transfers_keep_the_sum() {
    let bytes = 16 << 20;
    let kv = create(Mapped::anonymous(bytes).unwrap(), bytes);
    backups_are_of_one_moment(&kv, 400);
}

/// Returns a store of 16 MiB on a file in `folder`: its tickets become durable later than they are issued.
fn on_file(folder: &Path) -> Kv<impl Medium> {
    let bytes = 16 << 20;
    let options = OpenOptions {
        medium: Some(Kind::File),
        ..OpenOptions::default()
    };
    match create_path(&folder.join("pool"), bytes, &options, &mut |_, _| {}).unwrap() {
        AnyMedium::File(medium) => create(medium, bytes),
        AnyMedium::Mapped(_) => panic!("a file was asked for"),
    }
}

#[test]
fn backups_on_a_file_keep_the_sum() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    backups_are_of_one_moment(&on_file(folder.path()), 150);
}

#[test]
fn a_backup_has_what_was_replaced_deleted_and_large() {
    let bytes = 64 << 20;
    let kv = create(Mapped::anonymous(bytes).unwrap(), bytes);
    let mut session = kv.session();
    let large = vec![7_u8; 300_000];
    for (name, bytes) in [
        ("a", &b"old"[..]),
        ("b", b"old"),
        ("large", &large),
        ("z", b"old"),
    ] {
        session.put(key(name.as_bytes()), value(bytes)).unwrap();
    }
    let expired = Value {
        expires_ms: 1,
        ..value(b"x")
    };
    session.put(key(b"expired"), expired).unwrap();
    session
        .put(Key { db: 3, bytes: b"a" }, value(b"other"))
        .unwrap();
    let ticket = session.commit().unwrap();
    session.wait(ticket).unwrap();
    let mut backup = kv.backup().unwrap();
    assert_eq!(kv.backup().err(), Some(Error::Backup(BackupError::Running)));
    session.put_durable(key(b"a"), value(b"new")).unwrap();
    session.put_durable(key(b"a"), value(b"newer")).unwrap();
    session.delete(key(b"b")).unwrap();
    session.put(key(b"large"), value(&[8; 400_000])).unwrap();
    session.put(key(b"added"), value(b"new")).unwrap();
    session.commit().unwrap();
    // Writers fill half of the pool before the first step, and then the pool several times. The replaced records must not be recycled before they were read.
    let mut found = Vec::new();
    let mut note = |key: Key<'_>, item: farbank_store::StoredItem<'_>| {
        found.push((key.db, key.bytes.to_vec(), item.bytes.to_vec()));
    };
    for round in 0..4_000_u32 {
        let name = round.to_le_bytes();
        session.put(key(&name), value(&[1; 40_000])).unwrap();
        session.commit().unwrap();
        session.delete(key(&name)).unwrap();
        session.commit().unwrap();
        if round >= 400 && round % 20 == 0 {
            assert!(backup.step(0, &mut note).unwrap());
        }
    }
    while backup.step(1, &mut note).unwrap() {}
    found.sort();
    let expected = [
        (0, "a", b"old".to_vec()),
        (0, "b", b"old".to_vec()),
        (0, "large", large),
        (0, "z", b"old".to_vec()),
        (3, "a", b"other".to_vec()),
    ];
    let expected = expected.map(|(db, name, bytes)| (db, name.as_bytes().to_vec(), bytes));
    assert_eq!(found, expected);
    assert_eq!(backup.damaged(), 0);
}

#[test]
fn flushall_ends_a_backup() {
    let bytes = 16 << 20;
    let kv = create(Mapped::anonymous(bytes).unwrap(), bytes);
    let mut session = kv.session();
    for n in 0..100_u64 {
        session
            .put_durable(key(&n.to_le_bytes()), value(b"x"))
            .unwrap();
    }
    let mut backup = kv.backup().unwrap();
    assert!(backup.step(1, &mut |_, _| ()).unwrap());
    session.flush_all().unwrap();
    let ended = backup.step(1, &mut |_, _| ()).unwrap_err();
    assert_eq!(ended, Error::Backup(BackupError::Flushed));
    drop(backup);
    assert_eq!(read_backup(&kv, 10).unwrap().len(), 0);
}

/// Reads the rest of a backup.
fn rest_of(mut backup: Box<dyn Backup>) -> HashMap<Vec<u8>, Vec<u8>> {
    let mut found = HashMap::new();
    while backup
        .step(100, &mut |key, item| {
            found.insert(key.bytes.to_vec(), item.bytes.to_vec());
        })
        .unwrap()
    {}
    found
}

fn get(session: &mut dyn Session, name: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let found = session.get(key(name), ReadView::Durable, &mut out, &mut |_, _| true);
    assert!(found.unwrap());
    out
}

#[test]
fn a_staged_write_of_before_the_moment_is_in_the_backup() {
    let bytes = 16 << 20;
    let kv = create(Mapped::anonymous(bytes).unwrap(), bytes);
    let mut session = kv.session();
    for is_group in [false, true] {
        session.put(key(b"k"), value(b"old")).unwrap();
        session.commit().unwrap();
        session.put(key(b"k"), value(b"staged")).unwrap();
        let mut backup = kv.backup().unwrap();
        let going = backup.step(100, &mut |_, _| panic!("the write is still staged"));
        assert!(going.unwrap());
        if is_group {
            let body = &mut |ops: &mut dyn Ops| {
                ops.put(key(b"k"), value(b"later"))?;
                Ok(GroupDecision::Apply)
            };
            session.group(&[key(b"k")], body).unwrap();
        } else {
            session.put(key(b"k"), value(b"later")).unwrap();
        }
        session.commit().unwrap();
        assert_eq!(rest_of(backup)[&b"k"[..]], b"staged", "{is_group}");
        assert_eq!(get(&mut *session, b"k"), b"later");
    }
}

#[test]
fn a_write_that_is_a_batch_by_itself_hands_over_what_it_replaces() {
    let bytes = 16 << 20;
    let kv = create(Mapped::anonymous(bytes).unwrap(), bytes);
    let mut session = kv.session();
    for text in ["first", "second", "old"] {
        session
            .put_durable(key(b"k"), value(text.as_bytes()))
            .unwrap();
        session.commit().unwrap();
    }
    let backup = kv.backup().unwrap();
    session.put_durable(key(b"k"), value(b"new")).unwrap();
    session.put_durable(key(b"k"), value(b"newer")).unwrap();
    session.put_durable(key(b"added"), value(b"new")).unwrap();
    let found = rest_of(backup);
    assert_eq!((found.len(), &found[&b"k"[..]][..]), (1, &b"old"[..]));
}

#[test]
fn a_write_that_was_overtaken_before_its_publication_is_in_the_backup() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let kv = on_file(folder.path());
    let (mut first, mut second) = (kv.session(), kv.session());
    let ticket = first.put_durable(key(b"k"), value(b"old")).unwrap().1;
    first.wait(ticket).unwrap();
    first.put(key(b"k"), value(b"overtaken")).unwrap();
    first.commit().unwrap(); // Drained; this session publishes it later.
    let backup = kv.backup().unwrap();
    second.put(key(b"k"), value(b"later")).unwrap();
    let ticket = second.commit().unwrap();
    second.wait(ticket).unwrap();
    assert_eq!(rest_of(backup)[&b"k"[..]], b"overtaken");
    drop(first);
    assert_eq!(get(&mut *second, b"k"), b"later");
}

#[test]
fn a_dropped_backup_delays_nothing() {
    let bytes = 8 << 20;
    let kv = create(Mapped::anonymous(bytes).unwrap(), bytes);
    let backup = kv.backup().unwrap();
    assert!(matches!(
        kv.backup(),
        Err(Error::Backup(BackupError::Running))
    ));
    drop(backup);
    let mut session = kv.session();
    for n in 0..20_000_u64 {
        session
            .put_durable(key(&(n % 50).to_le_bytes()), value(&[1; 2000]))
            .unwrap();
    }
    thread::sleep(Duration::from_millis(1));
    let mut backup = kv.backup().unwrap();
    assert_eq!(backup.keys()[0], 50);
    let mut keys = 0;
    while backup.step(7, &mut |_, _| keys += 1).unwrap() {}
    assert_eq!(keys, 50);
}

/// Replaces one key again and again until no segment can be emptied, or often enough to reuse the pool ten times.
fn use_all_room(kv: &Kv<Mapped>, session: &mut dyn Session, bytes: &[u8]) {
    for _ in 0..1_500 {
        let room = session.prepare(bytes.len(), false).unwrap();
        let is_full = room == RoomReply::Wait || !put_if_room(session, b"churn", bytes);
        if is_full && !kv.clean().unwrap() {
            return;
        }
    }
}

/// Replaces a key in a batch of its own. Returns whether there was room.
fn put_if_room(session: &mut dyn Session, name: &[u8], bytes: &[u8]) -> bool {
    match session.put(key(name), value(bytes)) {
        Err(error) if error.is_full() => return false,
        put => put.unwrap(),
    };
    let ticket = session.commit().unwrap();
    session.wait(ticket).unwrap();
    true
}

#[test]
fn a_record_that_was_handed_over_is_not_recycled_before_it_was_read() {
    const SEGMENT_BYTES: u64 = 4 << 10;
    const KEYS: u8 = 16;
    let config = Config {
        cleaning: CleaningMode::Inline,
        patience: 8,
        ..Config::default()
    };
    let medium = Mapped::anonymous(8192 + 32 * SEGMENT_BYTES).unwrap();
    let kv = Kv::create(medium, SEGMENT_BYTES, config).unwrap();
    let mut session = kv.session();
    // Each of these values takes a segment, so the segment of a replaced one is empty.
    let bytes_of = |n: u8| vec![n; 3_000];
    for n in 0..KEYS {
        assert!(put_if_room(&mut *session, &[n], &bytes_of(n)));
    }
    let mut backup = kv.backup().unwrap();
    // Some records are handed over before the first step.
    for n in 0..KEYS / 2 {
        assert!(put_if_room(&mut *session, &[n], b"new"));
    }
    use_all_room(&kv, &mut *session, &bytes_of(100));
    let mut found = HashMap::new();
    let mut next = KEYS / 2;
    loop {
        let mut is_first = true;
        let going = backup.step(1, &mut |key, item| {
            found.insert(key.bytes.to_vec(), item.bytes.to_vec());
            if std::mem::take(&mut is_first) {
                // Between two reads of handed-over records, another one is handed over, and segments are reused.
                if next < KEYS && put_if_room(&mut *session, &[next], b"new") {
                    next += 1;
                }
                use_all_room(&kv, &mut *session, &bytes_of(101));
            }
        });
        if !going.unwrap() {
            break;
        }
    }
    assert_eq!(backup.damaged(), 0);
    assert!(next > KEYS / 2, "too few records were handed over");
    let expected: HashMap<_, _> = (0..KEYS).map(|n| (vec![n], bytes_of(n))).collect();
    assert_eq!(found, expected);
}
