//! The library facade: what an embedding program may rely on.

use farbank::{CounterError, Error, Options, SyncPolicy, open};

fn small() -> Options {
    Options {
        pool_bytes: 16 << 20,
        ..Options::default()
    }
}

#[test]
fn what_was_committed_is_there_after_a_close_and_after_a_drop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");

    let db = open(&path, &small()).unwrap();
    let mut session = db.session();
    session.put(b"greeting", b"hello").unwrap();
    assert_eq!(session.get(b"greeting").unwrap().unwrap(), b"hello");
    session.commit().unwrap();
    drop(session);
    db.close().unwrap();

    let db = open(&path, &small()).unwrap();
    assert!(db.store().opened().clean);
    let mut session = db.session();
    assert_eq!(session.get(b"greeting").unwrap().unwrap(), b"hello");
    session.put(b"greeting", b"hello again").unwrap();
    session.put(b"other", b"1").unwrap();
    assert!(session.delete(b"other").unwrap());
    session.commit().unwrap();
    drop(session);
    drop(db);

    let db = open(&path, &small()).unwrap();
    assert!(!db.store().opened().clean);
    let mut session = db.session();
    assert_eq!(session.get(b"greeting").unwrap().unwrap(), b"hello again");
    assert_eq!(session.get(b"other").unwrap(), None);
}

#[test]
fn threads_share_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let db = open(folder.path().join("pool"), &small()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let db = &db;
            scope.spawn(move || {
                let mut session = db.session();
                session.put(&[thread], &[thread]).unwrap();
                session.commit().unwrap();
            });
        }
    });
    let mut session = db.session();
    for thread in 0..4_u8 {
        assert_eq!(session.get(&[thread]).unwrap().unwrap(), [thread]);
    }
}

#[test]
fn a_session_that_has_read_and_does_nothing_takes_no_room_from_others() {
    let folder = tempfile::tempdir().unwrap();
    let db = open(folder.path().join("pool"), &small()).unwrap();
    let mut writer = db.session();
    writer.put(b"k", b"first").unwrap();
    writer.commit().unwrap();
    let mut idle = [db.session(), db.session()];
    assert!(idle[0].get(b"k").unwrap().is_some());
    assert!(!idle[1].delete(b"absent").unwrap());
    for n in 0..3_000_u32 {
        writer.put(b"k", &n.to_le_bytes().repeat(4 << 10)).unwrap();
        writer.commit().unwrap();
    }
}

#[test]
fn a_pool_is_open_once_and_a_failed_creation_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    let _db = open(&path, &small()).unwrap();
    let error = open(&path, &small()).err().unwrap().to_string();
    assert!(error.contains("is in use"), "{error}");

    let tiny = Options {
        pool_bytes: 16 << 10,
        ..Options::default()
    };
    let path = folder.path().join("tiny");
    assert!(open(&path, &tiny).is_err());
    assert!(!path.exists());
}

#[test]
fn the_readme_says_what_each_medium_says_of_itself() {
    let readme = include_str!("../../../README.md");
    let rows: Vec<&str> = readme.lines().filter(|l| l.starts_with("| `")).collect();
    let folder = tempfile::tempdir().unwrap();
    for (sync, row) in [
        (SyncPolicy::Always, "| `file`, `--sync always`"),
        (SyncPolicy::EverySec, "| `file`, `--sync everysec`"),
        (SyncPolicy::Never, "| `file`, `--sync never`"),
    ] {
        let options = Options {
            sync,
            medium: Some(farbank::pm::Kind::File),
            ..small()
        };
        let db = open(folder.path().join(sync.name()), &options).unwrap();
        let survives = &db.store().caps().survives;
        if survives.contains("the file is in memory") {
            return; // The folder for temporary files is on tmpfs.
        }
        let row = rows.iter().find(|l| l.starts_with(row)).unwrap();
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (kill, cut) = (cells[2], cells[3]);
        assert_eq!(kill, "yes");
        let cut_survived = survives.starts_with("a kill and a power cut");
        assert_eq!(cut == "yes", cut_survived, "{survives}");
        let lost = survives.split("may lose ").nth(1);
        assert!(
            lost.is_none_or(|lost| cut.starts_with(&lost[..12])),
            "{cut}: {survives}"
        );
    }
}

#[test]
fn a_transaction_that_fails_or_panics_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let db = open(folder.path().join("pool"), &small()).unwrap();
    let mut session = db.session();
    session.put(b"a", b"1").unwrap();
    session.commit().unwrap();
    let failed: Result<(), Error> = session.transaction(&[b"a", b"b"], |tx| {
        tx.put(b"b", b"2")?;
        assert!(tx.delete(b"a")?);
        tx.put(b"c", b"3")
    });
    assert_eq!(failed, Err(Error::NotInGroup));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        session.transaction(&[b"a"], |tx| -> Result<(), Error> {
            tx.put(b"a", b"9")?;
            panic!("the caller's own")
        })
    }));
    assert!(panicked.is_err());
    session.commit().unwrap();
    assert_eq!(session.get(b"a").unwrap().unwrap(), b"1");
    assert_eq!(session.get(b"b").unwrap(), None);
    session.put(b"a", b"2").unwrap();
}

#[test]
fn counters_add_up_over_threads_and_refuse_what_is_no_number() {
    let folder = tempfile::tempdir().unwrap();
    let db = open(folder.path().join("pool"), &small()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut session = db.session();
                for _ in 0..100 {
                    session.add(b"count", 1).unwrap();
                    session.commit().unwrap();
                }
            });
        }
    });
    let mut session = db.session();
    assert_eq!(session.add(b"count", 0), Ok(400));
    session.put(b"count", b"many").unwrap();
    assert_eq!(session.add(b"count", 1), Err(CounterError::NotAnInteger));
    session
        .put(b"count", i64::MAX.to_string().as_bytes())
        .unwrap();
    assert_eq!(session.add(b"count", 1), Err(CounterError::Overflow));
}

#[test]
fn an_iteration_visits_every_key_with_its_value() {
    let folder = tempfile::tempdir().unwrap();
    let db = open(folder.path().join("pool"), &small()).unwrap();
    let mut session = db.session();
    for n in 0..1_000_u32 {
        session
            .put(&n.to_le_bytes(), &(n * 7).to_le_bytes())
            .unwrap();
    }
    let pairs: std::collections::BTreeMap<_, _> = session.iter().map(Result::unwrap).collect();
    assert_eq!(pairs.len(), 1_000);
    assert!((0..1_000_u32).all(|n| pairs[&n.to_le_bytes()[..]] == (n * 7).to_le_bytes()));
}
