//! Is there an order of all calls that explains what was answered?
//!
//! ```text
//!   client 0   ├─ SET r1 7 ─┤       ├─ GET r1: 7 ─┤
//!   client 1        ├─── DEL r1: 1 ───┤    ├── SET r1 9 ── (no answer: the server was killed)
//!   reader                                                      ├─ MGET: r1 = 9 ─┤
//! ```
//!
//! A depth-first search over how far each client's list has been ordered, and the state by then. A call may come next if
//! no call that is still to be ordered was answered before it was sent. What was never answered may have happened at any
//! time since, or never. Places that were tried are not tried again; a call that changes nothing and answers right is
//! taken at once, as no order is lost by that.

use std::collections::HashSet;

use super::family::{Answer, Call, State};

/// Places after which a search gives up.
const PLACES_MAX: usize = 3_000_000;

/// A call as a client saw it.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) call: Call,
    /// `None`: it was never answered.
    pub(super) answer: Option<Answer>,
    /// Nanoseconds since the run began.
    pub(super) sent: u64,
    /// `u64::MAX`: never.
    pub(super) answered: u64,
}

/// How a search ended.
#[derive(Debug)]
pub(super) enum Verdict {
    /// There is an order.
    Holds,
    /// There is none. The state and how far each client had got where most calls were explained.
    Fails { state: State, done: Vec<usize> },
    /// It was given up.
    Open,
}

/// How far each client's list has been ordered, and the state by then.
type Place = (Vec<u32>, State);

/// Searches for an order from `start` on. Each client's list is in the order in which it was sent.
pub(super) fn search(start: State, clients: &[Vec<Event>]) -> Verdict {
    let mut stack: Vec<Place> = vec![(vec![0; clients.len()], start)];
    let mut seen: HashSet<Place> = HashSet::new();
    let mut furthest = (0, start, vec![0; clients.len()]);
    while let Some((done, state)) = stack.pop() {
        if ended(&done, clients) {
            return Verdict::Holds;
        }
        if !seen.insert((done.clone(), state)) {
            continue;
        }
        if seen.len() > PLACES_MAX {
            return Verdict::Open;
        }
        let ordered = done.iter().sum::<u32>();
        if ordered >= furthest.0 {
            let done = done.iter().map(|done| *done as usize).collect();
            furthest = (ordered, state, done);
        }
        follow(&done, state, clients, &mut stack);
    }
    let (_, state, done) = furthest;
    Verdict::Fails { state, done }
}

/// Whether all that was answered has been ordered.
fn ended(done: &[u32], clients: &[Vec<Event>]) -> bool {
    let left = |(done, events): (&u32, &Vec<Event>)| {
        events[*done as usize..]
            .iter()
            .any(|event| event.answer.is_some())
    };
    !done.iter().zip(clients).any(left)
}

/// Pushes where one can go from a place.
fn follow(done: &[u32], state: State, clients: &[Vec<Event>], stack: &mut Vec<Place>) {
    let next = |client: usize| clients[client].get(done[client] as usize);
    let first_answer = (0..clients.len())
        .filter_map(|client| next(client).map(|event| event.answered))
        .min();
    let advanced = |client: usize| {
        let mut done = done.to_vec();
        done[client] += 1;
        done
    };
    let from = stack.len();
    for client in 0..clients.len() {
        let Some(event) = next(client) else { continue };
        if first_answer.is_some_and(|first| event.sent > first) {
            continue;
        }
        let (after, answer) = state.run(&event.call);
        match &event.answer {
            Some(answered) if *answered != answer => {}
            Some(_) if after == state => {
                stack.truncate(from);
                stack.push((advanced(client), state));
                return;
            }
            Some(_) => stack.push((advanced(client), after)),
            None => {
                stack.push((advanced(client), state));
                if after != state {
                    stack.push((advanced(client), after));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(call: Call, answer: Option<Answer>, sent: u64, answered: u64) -> Event {
        Event {
            call,
            answer,
            sent,
            answered,
        }
    }

    fn set(at: usize, id: u32, sent: u64, answered: u64) -> Event {
        event(
            Call::Set(vec![(at, id)]),
            Some(Answer::Done),
            sent,
            answered,
        )
    }

    fn lost(at: usize, id: u32, sent: u64) -> Event {
        event(Call::Set(vec![(at, id)]), None, sent, u64::MAX)
    }

    fn get(at: usize, id: Option<u32>, sent: u64, answered: u64) -> Event {
        event(Call::Get(at), Some(Answer::Value(id)), sent, answered)
    }

    fn all(registers: [Option<u32>; 4], accounts: [Option<i64>; 2], sent: u64) -> Event {
        let state = State {
            registers,
            accounts,
        };
        event(Call::GetAll, Some(Answer::All(state)), sent, sent + 1)
    }

    fn holds(clients: &[Vec<Event>]) -> bool {
        match search(State::default(), clients) {
            Verdict::Holds => true,
            Verdict::Fails { .. } => false,
            Verdict::Open => panic!("the search was given up"),
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
        let both = event(Call::Set(vec![(0, 1), (1, 2)]), None, 0, u64::MAX);
        let half = all([Some(1), None, None, None], [None, None], 20);
        assert!(!holds(&[vec![both], vec![half]]));
    }

    #[test]
    fn an_answer_binds_what_it_relies_on() {
        // SETNX answered 0, so the other's write had happened, and must be there.
        let refused = event(Call::SetNew(vec![(0, 2)]), Some(Answer::Number(0)), 6, 8);
        let gone = get(0, None, 20, 21);
        assert!(!holds(&[vec![lost(0, 1, 5)], vec![refused, gone]]));
        let deleted = |count| {
            event(
                Call::Delete(vec![0, 1]),
                Some(Answer::Number(count)),
                10,
                11,
            )
        };
        assert!(holds(&[vec![set(0, 1, 0, 9), deleted(1)]]));
        assert!(!holds(&[vec![set(0, 1, 0, 9), deleted(2)]]));
    }

    #[test]
    fn counters_and_transfers_lose_nothing() {
        let add =
            |sum, sent, answered| event(Call::Add(0, 1), Some(Answer::Number(sum)), sent, answered);
        assert!(holds(&[vec![add(2, 0, 9)], vec![add(1, 0, 9)]]));
        assert!(
            !holds(&[vec![add(1, 0, 9)], vec![add(1, 0, 9)]]),
            "one is lost"
        );
        let moved = event(Call::Transfer(5), Some(Answer::Sums([-5, 5])), 0, 9);
        assert!(holds(&[
            vec![moved.clone()],
            vec![all([None; 4], [Some(-5), Some(5)], 20)]
        ]));
        assert!(!holds(&[
            vec![moved],
            vec![all([None; 4], [Some(-5), None], 20)]
        ]));
    }

    #[test]
    fn what_was_watched_was_there() {
        let replace = |id, answer| {
            event(
                Call::Replace {
                    read: vec![(0, Some(1))],
                    write: vec![(0, id)],
                },
                answer,
                10,
                19,
            )
        };
        let first = vec![set(0, 1, 0, 9)];
        let once = replace(2, Some(Answer::Done));
        assert!(holds(&[first.clone(), vec![once.clone()]]));
        assert!(!holds(&[
            first.clone(),
            vec![once],
            vec![replace(3, Some(Answer::Done))]
        ]));
        let cleared = event(Call::Clear, Some(Answer::Done), 10, 12);
        assert!(holds(&[
            first,
            vec![cleared, replace(2, Some(Answer::Changed))]
        ]));
    }
}
