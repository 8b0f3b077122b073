//! Is there an order of all calls that explains what was answered?
//!
//! ```text
//!   client 0   ├─ SET r1 7 ─┤       ├─ GET r1: 7 ─┤
//!   client 1        ├─── DEL r1: 1 ───┤    ├── SET r1 9 ── (no answer: the server was killed)
//!   reader                                                      ├─ MGET: r1 = 9 ─┤
//! ```
//!
//! The calls of a pipeline are sent at the same time and are of different keys: they may happen in any order.
//!
//! A depth-first search over how far each client's list has been ordered, and the state by then. A call may come next if
//! no call that is still to be ordered was answered before it was sent. What was never answered may have happened at any
//! time since, or never. Places that were tried are not tried again; a call whose answer says that it changed nothing is
//! taken as soon as it answers right, as no order is lost by that.

use std::collections::HashSet;

use super::family::{CallAnswer, FamilyCall, FamilyState};

/// Places after which a search gives up.
const PLACES_MAX: usize = 3_000_000;

/// A call as a client saw it.
#[derive(Clone, Debug)]
pub(super) struct SeenCall {
    pub(super) call: FamilyCall,
    /// `None`: it was never answered.
    pub(super) answer: Option<CallAnswer>,
    /// Nanoseconds since the run began.
    pub(super) sent: u64,
    /// `u64::MAX`: never.
    pub(super) answered: u64,
}

/// How a search ended.
#[derive(Debug)]
pub(super) enum SearchVerdict {
    /// There is an order.
    Holds,
    /// There is none. The state where most calls were explained, and the calls that could not come next there.
    Fails {
        state: FamilyState,
        stuck: Vec<SeenCall>,
    },
    /// It was given up.
    Open,
}

/// How far a client's list has been ordered: to this pipeline, of which these calls have been ordered, a bit each.
type ClientProgress = (u32, u32);
/// How far all lists have been ordered, and the state by then.
type SearchPosition = (Vec<ClientProgress>, FamilyState);

/// Searches for an order from `start` on. Each client's list is in the order in which it was sent.
pub(super) fn search(start: FamilyState, clients: &[Vec<SeenCall>]) -> SearchVerdict {
    let pipelines: Vec<Vec<&[SeenCall]>> = clients
        .iter()
        .map(|events| events.chunk_by(|a, b| a.sent == b.sent).collect())
        .collect();
    let mut stack: Vec<SearchPosition> = vec![(vec![(0, 0); clients.len()], start)];
    let mut seen: HashSet<SearchPosition> = HashSet::new();
    let mut furthest = (0, stack[0].clone());
    while let Some(place) = stack.pop() {
        if left(&place, &pipelines).all(|(_, _, event)| event.answer.is_none()) {
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
        follow(&place, &pipelines, &mut stack);
    }
    let place = furthest.1;
    SearchVerdict::Fails {
        state: place.1,
        stuck: left(&place, &pipelines)
            .map(|(_, _, event)| event.clone())
            .collect(),
    }
}

/// The calls of each client's next pipeline that are still to be ordered, with the client and their place in it.
fn left<'a>(
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

/// The place after a call of a client has been ordered.
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

/// Pushes where one can go from a place.
fn follow(place: &SearchPosition, pipelines: &[Vec<&[SeenCall]>], stack: &mut Vec<SearchPosition>) {
    let first_answer = left(place, pipelines)
        .map(|(_, _, event)| event.answered)
        .min();
    let (from, state) = (stack.len(), place.1);
    for (client, call, event) in left(place, pipelines) {
        if first_answer.is_some_and(|first| event.sent > first) {
            continue;
        }
        let (after, answer) = state.run(&event.call);
        let next = |state| advanced(place, client, call, state, pipelines);
        match &event.answer {
            Some(answered) if *answered != answer => {}
            Some(_) if after == state && event.call.says_what_it_did() => {
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
    fn an_acknowledged_write_that_is_lost_or_older_is_found() {
        assert!(holds(&[vec![set(0, 1, 0, 9), get(0, Some(1), 10, 11)]]));
        assert!(!holds(&[vec![set(0, 1, 0, 9), get(0, None, 10, 11)]]));
        let two = vec![set(0, 1, 0, 9), set(0, 2, 10, 19)];
        assert!(!holds(&[two.clone(), vec![get(0, Some(1), 20, 21)]]));
        assert!(holds(&[two, vec![get(0, Some(1), 18, 21)]]));
    }

    #[test]
    fn a_write_without_an_answer_happened_or_not_but_never_halfway_and_never_twice() {
        let write = vec![lost(0, 1, 5)];
        assert!(holds(&[write.clone(), vec![get(0, Some(1), 20, 21)]]));
        assert!(holds(&[write.clone(), vec![get(0, None, 20, 21)]]));
        let back = vec![get(0, Some(1), 20, 21), get(0, None, 22, 23)];
        assert!(!holds(&[write.clone(), back]));
        assert!(
            !holds(&[write, vec![get(0, Some(1), 2, 3)]]),
            "seen before it was sent"
        );
        let both = event(FamilyCall::Set(vec![(0, 1), (1, 2)]), None, 0, u64::MAX);
        let half = all([Some(1), None, None, None], [None; 3], 20);
        assert!(!holds(&[vec![both], vec![half]]));
    }

    #[test]
    fn an_answer_binds_what_it_relies_on() {
        // SETNX answered 0, so the other's write had happened, and must be there.
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
    fn a_clear_of_nothing_may_come_later() {
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
            "one is lost"
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
    fn what_was_watched_was_there() {
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
