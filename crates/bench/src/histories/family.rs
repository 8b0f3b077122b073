//! What a family of keys does: one object, whose every call is one step.
//!
//! ```text
//!   family f, in database f:   r0 r1 r2 r3   registers: values that are written once in a run, by number
//!                              a0 a1 a2      accounts: decimal numbers
//! ```
//!
//! This is the specification that histories are compared with: [`State::run`] says what a call does and answers, alone.

use std::fmt;

/// Families of keys, each in a database of its own.
pub(super) const FAMILIES: usize = 6;
/// Registers of a family.
pub(super) const REGISTERS: usize = 4;
/// Accounts of a family.
pub(super) const ACCOUNTS: usize = 3;
/// Accounts that a transfer changes, the first ones.
pub(super) const TRANSFERRED: usize = 2;

/// The number of a value. No two writes of a run have the same.
pub(super) type ValueId = u32;

/// What a family holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct FamilyState {
    pub(super) registers: [Option<ValueId>; REGISTERS],
    pub(super) accounts: [Option<i64>; ACCOUNTS],
}

impl FamilyState {
    /// How many keys there are.
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

/// One call. Registers and accounts are named by their index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum FamilyCall {
    /// GET, and memcached's get: [`Answer::Value`].
    Get(usize),
    /// MGET of all keys of the family: [`Answer::All`].
    GetAll,
    /// SET, MSET, and memcached's set: [`Answer::Done`].
    Set(Vec<(usize, ValueId)>),
    /// SET with GET: what was there.
    Swap(usize, ValueId),
    /// SETNX and MSETNX, and memcached's add: the number 1, or 0 if one was there.
    SetNew(Vec<(usize, ValueId)>),
    /// GETDEL.
    Take(usize),
    /// DEL, and memcached's delete: how many there were.
    Delete(Vec<usize>),
    /// memcached's set that found no room: the item that it would have replaced is gone.
    Remove(usize),
    /// EXISTS: how many there are. Of several keys it looks at one after the other.
    Count(Vec<usize>),
    /// WATCH and MULTI, or memcached's cas: what is written if what was read is still there.
    Replace {
        read: Vec<(usize, Option<ValueId>)>,
        write: Vec<(usize, ValueId)>,
    },
    /// INCRBY: the sum.
    Add(usize, i64),
    /// DECRBY of the first account and INCRBY of the second in one MULTI: both sums.
    Transfer(i64),
    /// FLUSHALL. FLUSHDB deletes key by key, so it is no call.
    Clear,
}

impl FamilyCall {
    /// The keys that a call reads or writes, a bit each. FLUSHALL has none of its own.
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
            FamilyCall::GetAll => (1 << (REGISTERS + ACCOUNTS)) - 1,
            FamilyCall::Clear => 0,
        }
    }

    /// Whether the answer tells a call that changed something from one that did not.
    pub(super) fn says_what_it_did(&self) -> bool {
        !matches!(
            self,
            FamilyCall::Set(_) | FamilyCall::Remove(_) | FamilyCall::Clear
        )
    }
}

/// What a call answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum CallAnswer {
    Done,
    Value(Option<ValueId>),
    All(FamilyState),
    Number(i64),
    Sums([i64; TRANSFERRED]),
    /// What was read is not there any more, so nothing is written.
    Changed,
    /// Nothing happened: there was no room, or something else was changed, too.
    Refused,
}

impl FamilyState {
    /// What a call leaves and answers.
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
