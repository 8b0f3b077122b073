//! Specification of a family of keys: one object on which every call is one atomic step.
//!
//! ```text
//!   family f, in database f:   r0 r1 r2 r3   registers: values, each written once in a run, identified by number
//!                              a0 a1 a2      accounts: decimal numbers
//! ```
//!
//! Histories are compared with this specification. [`FamilyState::run`] gives the effect and the answer of one call.

use std::fmt;

use super::values::{ValueId, is_grouped};

/// Number of families. Each has a database of its own.
pub(super) const FAMILIES: usize = 6;
/// Number of registers of a family.
pub(super) const REGISTERS: usize = 4;
/// Number of accounts of a family.
pub(super) const ACCOUNTS: usize = 3;
/// Number of accounts that a transfer changes; they are the first ones.
pub(super) const TRANSFERRED: usize = 2;

/// Contents of a family.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct FamilyState {
    pub(super) registers: [Option<ValueId>; REGISTERS],
    pub(super) accounts: [Option<i64>; ACCOUNTS],
}

impl FamilyState {
    /// Returns the number of keys that exist.
    pub(super) fn keys(&self) -> usize {
        self.registers.iter().flatten().count() + self.accounts.iter().flatten().count()
    }
}

impl fmt::Debug for FamilyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        list.entries(self.registers.map(|id| id.unwrap_or(0)));
        list.entries(self.accounts.map(|sum| sum.unwrap_or(0)));
        list.finish()
    }
}

/// A call. Registers and accounts are given by index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum FamilyCall {
    /// GET, and memcached's `get`. Answers [`CallAnswer::Value`].
    Get(usize),
    /// MGET of all keys of the family. Answers [`CallAnswer::All`].
    GetAll,
    /// SET, MSET, and memcached's `set`. Answers [`CallAnswer::Done`].
    Set(Vec<(usize, ValueId)>),
    /// SET with GET. Answers the old value.
    Swap(usize, ValueId),
    /// SETNX and MSETNX, and memcached's `add`. Answers 1, or 0 if one of the keys exists.
    SetNew(Vec<(usize, ValueId)>),
    /// GETDEL. Answers the old value.
    Take(usize),
    /// DEL, and memcached's `delete`. Answers the number of keys deleted.
    Delete(Vec<usize>),
    /// memcached's `set` that found no room: it removes the item that it would have replaced.
    Remove(usize),
    /// EXISTS. Answers the number of keys that exist.
    Count(Vec<usize>),
    /// WATCH and MULTI, or memcached's `cas`. Writes `write` if the registers still hold `read`.
    Replace {
        read: Vec<(usize, Option<ValueId>)>,
        write: Vec<(usize, ValueId)>,
    },
    /// INCRBY. Answers the sum.
    Add(usize, i64),
    /// DECRBY of the first account and INCRBY of the second in one MULTI. Answers both sums.
    Transfer(i64),
    /// EVAL of a script that declares no key. It moves money between the first two accounts, in a direction that the third
    /// one gives. Answers both sums, that of the account that pays first.
    Route(i64),
    /// EVAL of a script that declares no key. It exchanges the values of two registers if both exist and fit into a group
    /// together. Answers 1, or 0 if not.
    Exchange(usize, usize),
    /// FLUSHALL. FLUSHDB deletes key by key, so it is not an atomic call and is left out.
    Clear,
}

impl FamilyCall {
    /// Returns a bit for each key that the call reads or writes. FLUSHALL returns 0.
    pub(super) fn keys(&self) -> u32 {
        let registers = |list: &mut dyn Iterator<Item = usize>| list.map(|at| 1 << at).sum::<u32>();
        let account = |at: usize| 1 << (REGISTERS + at);
        match self {
            FamilyCall::Get(at)
            | FamilyCall::Swap(at, _)
            | FamilyCall::Take(at)
            | FamilyCall::Remove(at) => 1 << at,
            FamilyCall::Set(pairs)
            | FamilyCall::SetNew(pairs)
            | FamilyCall::Replace { write: pairs, .. } => {
                registers(&mut pairs.iter().map(|(at, _)| *at))
            }
            FamilyCall::Delete(list) | FamilyCall::Count(list) => {
                registers(&mut list.iter().copied())
            }
            FamilyCall::Add(at, _) => account(*at),
            FamilyCall::Transfer(_) => (0..TRANSFERRED).map(account).sum(),
            FamilyCall::Route(_) => (0..ACCOUNTS).map(account).sum(),
            FamilyCall::Exchange(one, other) => 1 << one | 1 << other,
            FamilyCall::GetAll => (1 << (REGISTERS + ACCOUNTS)) - 1,
            FamilyCall::Clear => 0,
        }
    }

    /// Returns whether the answer distinguishes a call that changed the state from one that did not.
    pub(super) fn answer_shows_effect(&self) -> bool {
        !matches!(
            self,
            FamilyCall::Set(_) | FamilyCall::Remove(_) | FamilyCall::Clear
        )
    }
}

/// Answer of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum CallAnswer {
    Done,
    Value(Option<ValueId>),
    All(FamilyState),
    Number(i64),
    Sums([i64; TRANSFERRED]),
    /// The registers no longer hold the values that were read, so nothing was written.
    Changed,
    /// The call had no effect: the pool was full, or a watched key changed.
    Refused,
}

impl FamilyState {
    /// Returns the state after a call, and its answer.
    pub(super) fn run(mut self, call: &FamilyCall) -> (FamilyState, CallAnswer) {
        let answer = match call {
            FamilyCall::Get(at) => CallAnswer::Value(self.registers[*at]),
            FamilyCall::GetAll => CallAnswer::All(self),
            FamilyCall::Set(pairs) => {
                self.write(pairs);
                CallAnswer::Done
            }
            FamilyCall::Swap(at, id) => CallAnswer::Value(self.registers[*at].replace(*id)),
            FamilyCall::SetNew(pairs) => {
                let free = pairs.iter().all(|(at, _)| self.registers[*at].is_none());
                if free {
                    self.write(pairs);
                }
                CallAnswer::Number(i64::from(free))
            }
            FamilyCall::Take(at) => CallAnswer::Value(self.registers[*at].take()),
            FamilyCall::Delete(list) => {
                let there = list
                    .iter()
                    .filter(|at| self.registers[**at].take().is_some());
                CallAnswer::Number(there.count() as i64)
            }
            FamilyCall::Remove(at) => {
                self.registers[*at] = None;
                CallAnswer::Done
            }
            FamilyCall::Count(list) => {
                let there = list.iter().filter(|at| self.registers[**at].is_some());
                CallAnswer::Number(there.count() as i64)
            }
            FamilyCall::Replace { read, write } => {
                if read.iter().any(|(at, id)| self.registers[*at] != *id) {
                    return (self, CallAnswer::Changed);
                }
                self.write(write);
                CallAnswer::Done
            }
            FamilyCall::Add(at, more) => CallAnswer::Number(self.add(*at, *more)),
            FamilyCall::Transfer(sum) => CallAnswer::Sums([self.add(0, -sum), self.add(1, *sum)]),
            FamilyCall::Route(sum) => {
                let payer = usize::from(self.accounts[TRANSFERRED].unwrap_or(0) % 2 != 0);
                CallAnswer::Sums([self.add(payer, -sum), self.add(1 - payer, *sum)])
            }
            FamilyCall::Exchange(one, other) => {
                let fits = |at: &usize| self.registers[*at].is_some_and(is_grouped);
                let is_exchanged = fits(one) && fits(other);
                if is_exchanged {
                    self.registers.swap(*one, *other);
                }
                CallAnswer::Number(i64::from(is_exchanged))
            }
            FamilyCall::Clear => {
                self = FamilyState::default();
                CallAnswer::Done
            }
        };
        (self, answer)
    }

    fn write(&mut self, pairs: &[(usize, ValueId)]) {
        for (at, id) in pairs {
            self.registers[*at] = Some(*id);
        }
    }

    fn add(&mut self, at: usize, more: i64) -> i64 {
        *self.accounts[at].get_or_insert(0) += more;
        self.accounts[at].unwrap_or(0)
    }
}
