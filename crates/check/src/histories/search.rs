//! Search for an order of all calls that explains their answers (a linearization).
//!
//! ```text
//!   client 0   ├─ SET r1 7 ─┤       ├─ GET r1: 7 ─┤
//!   client 1        ├─── DEL r1: 1 ───┤    ├── SET r1 9 ── (no answer: the server was killed)
//!   reader                                                      ├─ MGET: r1 = 9 ─┤
//! ```
//!
//! The calls of a pipeline are sent at the same time and use different keys: they may take effect in any order.
//!
//! This is a depth-first search. A position is how far each client's list has been ordered, and the state after these
//! calls. A call may come next unless another unordered call was answered before this call was sent. A call without an
//! answer may take effect at any time after its sending, or never. The search visits no position twice. A call whose
//! answer proves that it changed nothing is ordered as soon as its answer is right: this loses no order.

use std::collections::HashSet;

use super::family::{CallAnswer, FamilyCall, FamilyState};

/// Number of positions after which the search gives up.
const PLACES_MAX: usize = 3_000_000;

/// A call as a client recorded it.
#[derive(Clone, Debug)]
pub(super) struct SeenCall {
    pub(super) call: FamilyCall,
    /// `None` if the call was never answered.
    pub(super) answer: Option<CallAnswer>,
    /// Time of sending, in nanoseconds since the run began.
    pub(super) sent: u64,
    /// Time of the answer, in the same unit. `u64::MAX` if the call was never answered.
    pub(super) answered: u64,
}

/// Result of a search.
#[derive(Debug)]
pub(super) enum SearchVerdict {
    /// An order exists.
    Holds,
    /// No order exists. Holds the state after the longest explained prefix, and the calls that could not come next.
    Fails {
        state: FamilyState,
        stuck: Vec<SeenCall>,
    },
    /// The search was given up.
    Open,
}

/// Progress in one client's list: the index of its current pipeline, and a bit for each of its calls already ordered.
type ClientProgress = (u32, u32);
/// Progress in all lists, and the state after the ordered calls.
type SearchPosition = (Vec<ClientProgress>, FamilyState);

/// Searches for an order, starting with state `start`. Each client's list is in the order of sending.
pub(super) fn search(start: FamilyState, clients: &[Vec<SeenCall>]) -> SearchVerdict {
    let pipelines: Vec<Vec<&[SeenCall]>> = clients
        .iter()
        .map(|events| events.chunk_by(|a, b| a.sent == b.sent).collect())
        .collect();
    let mut stack: Vec<SearchPosition> = vec![(vec![(0, 0); clients.len()], start)];
    let mut seen: HashSet<SearchPosition> = HashSet::new();
    let mut furthest = (0, stack[0].clone());
    while let Some(place) = stack.pop() {
        if unordered_calls(&place, &pipelines).all(|(_, _, event)| event.answer.is_none()) {
            return SearchVerdict::Holds;
        }
        if !seen.insert(place.clone()) {
            continue;
        }
        if seen.len() > PLACES_MAX {
            return SearchVerdict::Open;
        }
        let ordered = place.0.iter().map(|(at, _)| at).sum::<u32>();
        if ordered >= furthest.0 {
            furthest = (ordered, place.clone());
        }
        push_successors(&place, &pipelines, &mut stack);
    }
    let place = furthest.1;
    SearchVerdict::Fails {
        state: place.1,
        stuck: unordered_calls(&place, &pipelines)
            .map(|(_, _, event)| event.clone())
            .collect(),
    }
}

/// Returns the unordered calls of each client's current pipeline, each with its client and its index in the pipeline.
fn unordered_calls<'a>(
    place: &SearchPosition,
    pipelines: &'a [Vec<&'a [SeenCall]>],
) -> impl Iterator<Item = (usize, usize, &'a SeenCall)> {
    place
        .0
        .clone()
        .into_iter()
        .zip(pipelines)
        .enumerate()
        .flat_map(|(client, ((at, done), pipelines))| {
            let events = pipelines.get(at as usize).copied().unwrap_or_default();
            let left = events
                .iter()
                .enumerate()
                .filter(move |(at, _)| done >> at & 1 == 0);
            left.map(move |(at, event)| (client, at, event))
        })
}

/// Returns the position after call `call` of `client`, which leaves `state`.
fn advanced(
    place: &SearchPosition,
    client: usize,
    call: usize,
    state: FamilyState,
    pipelines: &[Vec<&[SeenCall]>],
) -> SearchPosition {
    let mut done = place.0.clone();
    let (at, calls) = &mut done[client];
    *calls |= 1 << call;
    if calls.count_ones() as usize == pipelines[client][*at as usize].len() {
        (*at, *calls) = (*at + 1, 0);
    }
    (done, state)
}

/// Pushes all positions that follow `place`.
fn push_successors(
    place: &SearchPosition,
    pipelines: &[Vec<&[SeenCall]>],
    stack: &mut Vec<SearchPosition>,
) {
    let first_answer = unordered_calls(place, pipelines)
        .map(|(_, _, event)| event.answered)
        .min();
    let (from, state) = (stack.len(), place.1);
    for (client, call, event) in unordered_calls(place, pipelines) {
        if first_answer.is_some_and(|first| event.sent > first) {
            continue;
        }
        let (after, answer) = state.run(&event.call);
        let next = |state| advanced(place, client, call, state, pipelines);
        match &event.answer {
            Some(answered) if *answered != answer => {}
            Some(_) if after == state && event.call.answer_shows_effect() => {
                stack.truncate(from);
                stack.push(next(state));
                return;
            }
            Some(_) => stack.push(next(after)),
            None => {
                stack.push(next(state));
                if after != state {
                    stack.push(next(after));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(call: FamilyCall, answer: Option<CallAnswer>, sent: u64, answered: u64) -> SeenCall {
        SeenCall {
            call,
            answer,
            sent,
            answered,
        }
    }

    fn set(at: usize, id: u32, sent: u64, answered: u64) -> SeenCall {
        event(
            FamilyCall::Set(vec![(at, id)]),
            Some(CallAnswer::Done),
            sent,
            answered,
        )
    }

    fn lost(at: usize, id: u32, sent: u64) -> SeenCall {
        event(FamilyCall::Set(vec![(at, id)]), None, sent, u64::MAX)
    }

    fn get(at: usize, id: Option<u32>, sent: u64, answered: u64) -> SeenCall {
        event(
            FamilyCall::Get(at),
            Some(CallAnswer::Value(id)),
            sent,
            answered,
        )
    }

    fn all(registers: [Option<u32>; 4], accounts: [Option<i64>; 3], sent: u64) -> SeenCall {
        let state = FamilyState {
            registers,
            accounts,
        };
        event(
            FamilyCall::GetAll,
            Some(CallAnswer::All(state)),
            sent,
            sent + 1,
        )
    }

    fn holds(clients: &[Vec<SeenCall>]) -> bool {
        match search(FamilyState::default(), clients) {
            SearchVerdict::Holds => true,
            SearchVerdict::Fails { .. } => false,
            SearchVerdict::Open => panic!("the search was given up"),
        }
    }

    #[test]
    fn a_lost_or_stale_acknowledged_write_is_detected() {
        assert!(holds(&[vec![set(0, 1, 0, 9), get(0, Some(1), 10, 11)]]));
        assert!(!holds(&[vec![set(0, 1, 0, 9), get(0, None, 10, 11)]]));
        let two = vec![set(0, 1, 0, 9), set(0, 2, 10, 19)];
        assert!(!holds(&[two.clone(), vec![get(0, Some(1), 20, 21)]]));
        assert!(holds(&[two, vec![get(0, Some(1), 18, 21)]]));
    }

    #[test]
    fn a_write_without_an_answer_takes_effect_at_most_once_and_never_in_part() {
        let write = vec![lost(0, 1, 5)];
        assert!(holds(&[write.clone(), vec![get(0, Some(1), 20, 21)]]));
        assert!(holds(&[write.clone(), vec![get(0, None, 20, 21)]]));
        let back = vec![get(0, Some(1), 20, 21), get(0, None, 22, 23)];
        assert!(!holds(&[write.clone(), back]));
        assert!(
            !holds(&[write, vec![get(0, Some(1), 2, 3)]]),
            "the value was read before its write was sent"
        );
        let both = event(FamilyCall::Set(vec![(0, 1), (1, 2)]), None, 0, u64::MAX);
        let half = all([Some(1), None, None, None], [None; 3], 20);
        assert!(!holds(&[vec![both], vec![half]]));
    }

    #[test]
    fn a_write_that_another_answer_depends_on_must_have_taken_effect() {
        // SETNX answered 0, so the write without an answer took effect before it and must still be visible.
        let refused = event(
            FamilyCall::SetNew(vec![(0, 2)]),
            Some(CallAnswer::Number(0)),
            6,
            8,
        );
        let gone = get(0, None, 20, 21);
        assert!(!holds(&[vec![lost(0, 1, 5)], vec![refused, gone]]));
        let deleted = |count| {
            event(
                FamilyCall::Delete(vec![0, 1]),
                Some(CallAnswer::Number(count)),
                10,
                11,
            )
        };
        assert!(holds(&[vec![set(0, 1, 0, 9), deleted(1)]]));
        assert!(!holds(&[vec![set(0, 1, 0, 9), deleted(2)]]));
    }

    #[test]
    fn a_flushall_may_be_ordered_before_or_after_a_concurrent_write() {
        let cleared = event(FamilyCall::Clear, Some(CallAnswer::Done), 0, 20);
        let gone = get(0, None, 21, 22);
        assert!(holds(&[
            vec![cleared.clone()],
            vec![set(0, 1, 5, 9), gone.clone()]
        ]));
        assert!(!holds(&[
            vec![cleared],
            vec![set(0, 1, 30, 39), get(0, None, 40, 41)]
        ]));
    }

    #[test]
    fn counters_and_transfers_lose_nothing() {
        let add = |sum, sent, answered| {
            event(
                FamilyCall::Add(0, 1),
                Some(CallAnswer::Number(sum)),
                sent,
                answered,
            )
        };
        assert!(holds(&[vec![add(2, 0, 9)], vec![add(1, 0, 9)]]));
        assert!(
            !holds(&[vec![add(1, 0, 9)], vec![add(1, 0, 9)]]),
            "one increment is lost"
        );
        let moved = event(
            FamilyCall::Transfer(5),
            Some(CallAnswer::Sums([-5, 5])),
            0,
            9,
        );
        assert!(holds(&[
            vec![moved.clone()],
            vec![all([None; 4], [Some(-5), Some(5), None], 20)]
        ]));
        assert!(!holds(&[
            vec![moved],
            vec![all([None; 4], [Some(-5), None, None], 20)]
        ]));
    }

    #[test]
    fn a_transaction_writes_only_if_its_watched_keys_are_unchanged() {
        let replace = |id, answer| {
            event(
                FamilyCall::Replace {
                    read: vec![(0, Some(1))],
                    write: vec![(0, id)],
                },
                answer,
                10,
                19,
            )
        };
        let first = vec![set(0, 1, 0, 9)];
        let once = replace(2, Some(CallAnswer::Done));
        assert!(holds(&[first.clone(), vec![once.clone()]]));
        assert!(!holds(&[
            first.clone(),
            vec![once],
            vec![replace(3, Some(CallAnswer::Done))]
        ]));
        let cleared = event(FamilyCall::Clear, Some(CallAnswer::Done), 10, 12);
        assert!(holds(&[
            first,
            vec![cleared, replace(2, Some(CallAnswer::Changed))]
        ]));
    }
}
