//! The oracle: the states that a crash may leave, checked claim by claim and against the general search.

use farbank_check::history::History;
use farbank_check::oracle::{CallEffect, KeyCall, check_history, linearizable};
use farbank_check::{Change, KeyWrite, OpAnswer, ReadView, TargetOp, Value};
use farbank_pm::Ticket;
use farbank_pm::rng::Rng;

fn v(id: u64) -> Value {
    Value { id, bytes: 8 }
}

fn put(key: u64, id: u64) -> KeyWrite {
    KeyWrite::Put {
        key,
        value: v(id),
        expires_ms: 0,
    }
}

/// Stages `op`.
fn stage(history: &mut History, session: usize, op: TargetOp) {
    let id = history.invoke(session, &op);
    history
        .answered(session, id, &op, &OpAnswer::Done, 0)
        .unwrap();
}

/// Commits and acknowledges all of the session.
fn ack(history: &mut History, session: usize) {
    history.commit(session, Ticket(1));
    history.durable(session, Ticket(1));
}

fn read(history: &mut History, session: usize, view: ReadView, id: Option<u64>) -> bool {
    let op = TargetOp::Get { key: 1, view };
    let call = history.invoke(session, &op);
    history
        .answered(session, call, &op, &OpAnswer::Found(id.map(v)), 0)
        .is_ok()
}

/// Returns which of these values key 1 may have; 0 means absent.
fn legal(history: &History, among: &[u64]) -> Vec<u64> {
    let shows = |id: u64| if id == 0 { vec![] } else { vec![(1, v(id))] };
    let found = |&id: &u64| check_history(history, &shows(id), 0).is_ok();
    among.iter().copied().filter(found).collect()
}

#[test]
fn a_pending_write_may_have_happened_and_an_acknowledged_one_must_have() {
    let mut history = History::new();
    stage(&mut history, 0, TargetOp::Write(put(1, 1)));
    assert_eq!(legal(&history, &[0, 1, 2]), [0, 1]);
    ack(&mut history, 0);
    assert_eq!(legal(&history, &[0, 1]), [1]);
    stage(&mut history, 0, TargetOp::Write(put(1, 2)));
    stage(
        &mut history,
        0,
        TargetOp::Write(KeyWrite::Delete { key: 1 }),
    );
    assert_eq!(legal(&history, &[0, 1, 2]), [0, 1, 2]);
    ack(&mut history, 0);
    assert_eq!(legal(&history, &[0, 1, 2]), [0]);
}

#[test]
fn overlapping_writes_of_two_sessions_may_happen_in_either_order() {
    let mut history = History::new();
    stage(&mut history, 0, TargetOp::Write(put(1, 1)));
    stage(&mut history, 1, TargetOp::Write(put(1, 2)));
    ack(&mut history, 1);
    ack(&mut history, 0);
    assert_eq!(legal(&history, &[0, 1, 2]), [1, 2]);
    assert!(read(&mut history, 2, ReadView::Durable, Some(2)));
    assert_eq!(legal(&history, &[1, 2]), [2], "a read has shown the order");
    assert!(!read(&mut history, 2, ReadView::Durable, Some(1)));
}

#[test]
fn a_write_that_another_session_has_read_must_survive() {
    let mut history = History::new();
    stage(&mut history, 0, TargetOp::Write(put(1, 1)));
    assert!(
        read(&mut history, 0, ReadView::Own, Some(1)),
        "its own reply is withheld"
    );
    assert_eq!(legal(&history, &[0, 1]), [0, 1]);
    assert!(
        !read(&mut history, 0, ReadView::Own, None),
        "it has just written"
    );
    assert!(read(&mut history, 1, ReadView::Durable, Some(1)));
    assert_eq!(legal(&history, &[0, 1]), [1]);
}

#[test]
fn an_own_view_read_of_a_pending_write_of_another_session_does_not_acknowledge_it() {
    let mut history = History::new();
    stage(&mut history, 0, TargetOp::Write(put(1, 1)));
    assert!(read(&mut history, 1, ReadView::Own, Some(1)));
    assert_eq!(legal(&history, &[0, 1]), [0, 1]);
}

#[test]
fn an_update_follows_the_write_it_replaced() {
    let mut history = History::new();
    stage(&mut history, 0, TargetOp::Write(put(1, 1)));
    let update = TargetOp::Update {
        key: 1,
        change: Change::Put(v(2)),
    };
    let id = history.invoke(1, &update);
    history
        .answered(1, id, &update, &OpAnswer::Found(Some(v(1))), 0)
        .unwrap();
    assert_eq!(legal(&history, &[0, 1, 2]), [0, 1, 2]);
    ack(&mut history, 1);
    assert_eq!(
        legal(&history, &[0, 1, 2]),
        [2],
        "1 was pending, but is under 2"
    );
}

#[test]
fn a_refused_write_never_appears() {
    let mut history = History::new();
    let op = TargetOp::Write(put(1, 1));
    let id = history.invoke(0, &op);
    history.answered(0, id, &op, &OpAnswer::Refused, 0).unwrap();
    assert_eq!(legal(&history, &[0, 1]), [0]);
}

#[test]
fn a_group_is_whole_or_absent_unless_a_newer_write_hides_it() {
    let mut history = History::new();
    stage(&mut history, 0, TargetOp::Write(put(1, 1)));
    ack(&mut history, 0);
    stage(&mut history, 0, TargetOp::Group(vec![put(1, 2), put(2, 3)]));
    assert!(check_history(&history, &[(1, v(1))], 0).is_ok());
    assert!(check_history(&history, &[(1, v(2)), (2, v(3))], 0).is_ok());
    assert!(check_history(&history, &[(1, v(2))], 0).is_err());
    assert!(check_history(&history, &[(1, v(1)), (2, v(3))], 0).is_err());
    stage(&mut history, 0, TargetOp::Write(put(1, 4)));
    assert!(
        check_history(&history, &[(1, v(4))], 0).is_ok(),
        "4 may hide either"
    );
    assert!(check_history(&history, &[(1, v(1)), (2, v(3))], 0).is_err());
}

#[test]
fn an_expired_value_is_absent_and_does_not_uncover_an_older_one() {
    let mut history = History::new();
    stage(&mut history, 0, TargetOp::Write(put(1, 1)));
    stage(
        &mut history,
        0,
        TargetOp::Write(KeyWrite::Put {
            key: 1,
            value: v(2),
            expires_ms: 50,
        }),
    );
    ack(&mut history, 0);
    assert!(check_history(&history, &[(1, v(2))], 49).is_ok());
    assert!(check_history(&history, &[], 49).is_err());
    assert!(check_history(&history, &[], 50).is_ok());
    assert!(check_history(&history, &[(1, v(1))], 50).is_err());
}

#[test]
fn contents_shown_by_a_recovery_must_survive_the_next_crash() {
    let mut history = History::new();
    stage(&mut history, 0, TargetOp::Write(put(1, 1)));
    history.recovered(&[(1, v(1))], 0);
    assert_eq!(legal(&history, &[0, 1]), [1]);
}

#[test]
fn a_flush_of_everything_is_durable_when_it_returns() {
    let mut history = History::new();
    stage(&mut history, 0, TargetOp::Write(put(1, 1)));
    let id = history.invoke(0, &TargetOp::FlushAll);
    assert_eq!(legal(&history, &[0, 1]), [0, 1]);
    history
        .answered(0, id, &TargetOp::FlushAll, &OpAnswer::Done, 0)
        .unwrap();
    assert_eq!(legal(&history, &[0, 1]), [0]);
}

#[test]
fn a_key_that_was_never_written_and_a_repeated_key_are_rejected() {
    let history = History::new();
    assert!(check_history(&history, &[(9, v(1))], 0).is_err());
    let mut history = History::new();
    stage(&mut history, 0, TargetOp::Write(put(1, 1)));
    assert!(check_history(&history, &[(1, v(1)), (1, v(1))], 0).is_err());
}

#[test]
fn a_damaged_value_is_rejected() {
    let bytes = Value { id: 7, bytes: 40 }.encode();
    assert_eq!(Value::decode(&bytes), Ok(Value { id: 7, bytes: 40 }));
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(Value::decode(&bad).is_err());
    }
    assert!(Value::decode(&bytes[..39]).is_err() && Value::decode(b"short").is_err());
}

#[test]
fn the_general_search_decides_the_textbook_cases() {
    let call = |act, invoked, acked| KeyCall {
        act,
        invoked,
        acked,
    };
    let w = |id| CallEffect::Write(Some(id));
    let r = |id| CallEffect::Read(Some(id));
    // A write overlaps two reads: if the first sees it, the second must too.
    let mut calls = vec![
        call(w(1), 0, Some(1)),
        call(w(2), 2, Some(9)),
        call(r(2), 3, Some(4)),
        call(r(1), 5, Some(6)),
    ];
    assert!(!linearizable(&calls, None, Some(2)));
    calls[3].act = r(2);
    assert!(linearizable(&calls, None, Some(2)));
    // A pending write that a read has seen must have happened.
    let pending = [call(w(1), 0, None), call(r(1), 1, Some(2))];
    assert!(linearizable(&pending, None, Some(1)));
    assert!(!linearizable(&pending, None, None));
    assert!(linearizable(&pending[..1], None, None));
    // Two updates cannot both have found the key absent.
    let update = |id, at| call(CallEffect::Update(None, Some(id)), at, Some(at + 5));
    assert!(!linearizable(&[update(1, 0), update(2, 1)], None, Some(2)));
    // Sixteen concurrent writes: the memo of visited states keeps this search short.
    let many: Vec<KeyCall> = (0..16).map(|i| call(w(i), i, Some(100))).collect();
    assert!(linearizable(&many, None, Some(3)));
    assert!(!linearizable(&many, None, None));
}

/// Random histories of one key, with one session per call. The quick check never rejects a state that the search
/// accepts. Without deletes (two of which look alike) it accepts no other state either.
#[test]
fn the_quick_check_agrees_with_the_general_search() {
    let (mut accepted, mut rejected) = (0, 0);
    for seed in 0..3_000 {
        let mut rng = Rng::new(seed);
        let deletes = rng.one_in(2);
        let mut history = History::new();
        let mut calls: Vec<KeyCall> = Vec::new();
        let mut open: Vec<usize> = Vec::new();
        let values = 6;
        let mut next = 1;
        'run: for _ in 0..3 + rng.below(12) {
            let session = calls.len();
            match rng.below(3) {
                0 if next <= values => {
                    let id = (!(deletes && rng.one_in(3))).then_some(next);
                    next += 1;
                    let write = id.map_or(KeyWrite::Delete { key: 1 }, |id| put(1, id));
                    stage(&mut history, session, TargetOp::Write(write));
                    let invoked = history.version() - 1;
                    calls.push(KeyCall {
                        act: CallEffect::Write(id),
                        invoked,
                        acked: None,
                    });
                    open.push(session);
                }
                1 if !open.is_empty() => {
                    let session = open.swap_remove(rng.below(open.len() as u64) as usize);
                    ack(&mut history, session);
                    calls[session].acked = Some(history.version());
                }
                _ => {
                    let found = Some(rng.below(next)).filter(|&id| id > 0);
                    let explained = read(&mut history, session, ReadView::Durable, found);
                    let acked = Some(history.version());
                    let invoked = history.version() - 1;
                    calls.push(KeyCall {
                        act: CallEffect::Read(found),
                        invoked,
                        acked,
                    });
                    let ends = (1..next).map(Some).chain([None]);
                    let possible = ends.into_iter().any(|end| linearizable(&calls, None, end));
                    assert!(explained || !possible, "seed {seed}: {calls:?}");
                    assert!(deletes || explained == possible, "seed {seed}: {calls:?}");
                    if !explained || !possible {
                        rejected += 1;
                        break 'run;
                    }
                }
            }
            for end in 0..next {
                let legal = legal(&history, &[end]) == [end];
                let possible = linearizable(&calls, None, Some(end).filter(|&id| id > 0));
                assert!(legal || !possible, "seed {seed}, end {end}: {calls:?}");
                assert!(
                    deletes || legal == possible,
                    "seed {seed}, end {end}: {calls:?}"
                );
                accepted += u64::from(legal);
            }
        }
    }
    println!("{accepted} states accepted, {rejected} reads rejected");
    assert!(accepted > 10_000 && rejected > 500);
}

#[test]
fn an_update_that_keeps_acknowledges_the_value_it_saw_with_its_batch() {
    let mut history = History::new();
    stage(&mut history, 0, TargetOp::Write(put(1, 1)));
    let keep = TargetOp::Update {
        key: 1,
        change: Change::Keep,
    };
    let id = history.invoke(1, &keep);
    let saw = OpAnswer::Found(Some(v(1)));
    history.answered(1, id, &keep, &saw, 0).unwrap();
    assert_eq!(legal(&history, &[0, 1]), [0, 1], "the reply is withheld");
    ack(&mut history, 1);
    assert_eq!(legal(&history, &[0, 1]), [1], "the reply has shown 1");
}

#[test]
fn a_reply_waits_for_the_batches_before_it() {
    let mut history = History::new();
    stage(&mut history, 0, TargetOp::Write(put(1, 1)));
    history.commit(0, Ticket(7));
    assert!(read(&mut history, 0, ReadView::Own, Some(1)));
    history.commit(0, Ticket::DURABLE);
    history.durable(0, Ticket::DURABLE);
    assert_eq!(legal(&history, &[0, 1]), [0, 1]);
    history.durable(0, Ticket(7));
    assert_eq!(legal(&history, &[0, 1]), [1]);
}

#[test]
fn the_answers_of_deletes_and_groups_are_checked() {
    let mut history = History::new();
    stage(&mut history, 0, TargetOp::Write(put(1, 1)));
    ack(&mut history, 0);
    let mut answered = |op: &TargetOp, answer: &OpAnswer| {
        let id = history.invoke(0, op);
        history.answered(0, id, op, answer, 0)
    };
    let delete = TargetOp::Write(KeyWrite::Delete { key: 1 });
    let absent = answered(&delete, &OpAnswer::Was(false)).unwrap_err();
    assert_eq!((absent.key, absent.what.contains("nothing")), (1, true));
    answered(&delete, &OpAnswer::Was(false)).expect("it was deleted before");
    answered(&delete, &OpAnswer::Was(true)).unwrap_err();
    let group = TargetOp::Group(vec![put(2, 3), put(1, 2)]);
    answered(&group, &OpAnswer::Saw(vec![None, Some(v(1))])).unwrap_err();
    answered(&group, &OpAnswer::Saw(vec![Some(v(3)), Some(v(2))])).expect("of the group before");
}

#[test]
fn the_general_search_checks_the_answer_of_a_delete() {
    let call = |act, at| KeyCall {
        act,
        invoked: at,
        acked: Some(at + 1),
    };
    let found = [
        call(CallEffect::Write(Some(1)), 1),
        call(CallEffect::Remove(true), 3),
    ];
    assert!(linearizable(&found, None, None));
    let missed = [
        call(CallEffect::Write(Some(1)), 1),
        call(CallEffect::Remove(false), 3),
    ];
    assert!(!linearizable(&missed, None, None));
    assert!(!linearizable(
        &[call(CallEffect::Remove(true), 1)],
        None,
        None
    ));
}

/// Keys 3 and 4 have the same name in databases 0 and 1.
#[test]
fn a_swap_moves_the_history_of_a_key_and_may_be_lost_only_before_its_answer() {
    let swap = TargetOp::Swap {
        first: 1,
        second: 0,
    };
    let mut history = History::new();
    stage(&mut history, 0, TargetOp::Write(put(3, 1)));
    let id = history.invoke(1, &swap);
    let (before, after) = ([(3, v(1))], [(4, v(1))]);
    let holds =
        |history: &History, shown: &[(u64, Value)]| check_history(history, shown, 0).is_ok();
    assert!(holds(&history, &[]) && holds(&history, &before) && holds(&history, &after));
    let answered = history.answered(1, id, &swap, &OpAnswer::Done, 0);
    assert!(answered.is_ok());
    // The swap has made the write durable, too.
    assert!(holds(&history, &after));
    assert!(!holds(&history, &before) && !holds(&history, &[]));
}

#[test]
fn a_recovery_during_a_swap_keeps_the_expiries_of_swapped_keys() {
    let expiring = KeyWrite::Put {
        key: 3,
        value: v(1),
        expires_ms: 100,
    };
    let mut history = History::new();
    stage(&mut history, 0, TargetOp::Write(expiring));
    let swap = TargetOp::Swap {
        first: 0,
        second: 1,
    };
    history.invoke(0, &swap);
    history.recovered(&[(4, v(1))], 50);
    assert!(check_history(&history, &[(4, v(1))], 50).is_ok());
    assert!(check_history(&history, &[], 100).is_ok());
}

#[test]
fn a_group_of_a_dropped_session_is_whole_after_a_swap_too() {
    let swap = TargetOp::Swap {
        first: 0,
        second: 1,
    };
    let mut history = History::new();
    stage(&mut history, 0, TargetOp::Group(vec![put(3, 1), put(5, 2)]));
    history.abandoned(0, false);
    stage(&mut history, 1, swap);
    let holds = |shown: &[(u64, Value)]| check_history(&history, shown, 0).is_ok();
    assert!(holds(&[]) && holds(&[(4, v(1)), (5, v(2))]));
    assert!(!holds(&[(4, v(1))]) && !holds(&[(5, v(2))]));
}
