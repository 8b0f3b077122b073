//! `math.random` and `math.randomseed` as in Redis: the 48-bit generator of POSIX's `lrand48`. The sequence of a Lua state
//! continues from script to script.

use std::cell::Cell;
use std::rc::Rc;

use mlua::{Lua, Table, Value};

use super::library::{nothing, one, register};

/// State of the generator of `lrand48`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rand48(u64);

impl Rand48 {
    /// The state before any seed is set.
    pub(super) const INITIAL: Rand48 = Rand48(0x1234_abcd_330e);

    /// The state after `srand48(seed)`.
    pub(super) fn seeded(seed: i32) -> Rand48 {
        Rand48((u64::from(seed as u32) << 16) | 0x330e)
    }

    /// Returns the next number, below 2^31.
    fn next(&mut self) -> u32 {
        const BITS: u64 = (1 << 48) - 1;
        self.0 = self.0.wrapping_mul(0x5_deec_e66d).wrapping_add(0xb) & BITS;
        (self.0 >> 17) as u32
    }

    /// Returns the next number, at least 0 and less than 1.
    fn next_fraction(&mut self) -> f64 {
        let most = i32::MAX as u32;
        f64::from(self.next() % most) / f64::from(most)
    }
}

/// Functions of `math` that use `state`.
pub(super) fn library(lua: &Lua, state: &Rc<Cell<Rand48>>) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let own = Rc::clone(state);
    register(lua, &table, "random", move |lua, args| {
        let mut random = own.get();
        let fraction = random.next_fraction();
        own.set(random);
        let (low, high, position) = match args.len() {
            0 => return one(Value::Number(fraction)),
            1 => (1.0, args.integer(lua, 1)? as f64, 1),
            2 => (
                args.integer(lua, 1)? as f64,
                args.integer(lua, 2)? as f64,
                2,
            ),
            _ => {
                return Err(super::library::LibraryError::Text(
                    "wrong number of arguments".to_owned(),
                ));
            }
        };
        if low > high {
            return Err(args.bad(position, "interval is empty"));
        }
        one(Value::Number((fraction * (high - low + 1.0)).floor() + low))
    })?;
    let own = Rc::clone(state);
    register(lua, &table, "randomseed", move |lua, args| {
        own.set(Rand48::seeded(args.integer(lua, 1)? as i32));
        nothing()
    })?;
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_redis() {
        let mut random = Rand48::seeded(5);
        let mut below = |most: f64| (random.next_fraction() * most).floor() + 1.0;
        assert_eq!([below(100_000.0), below(100_000.0)], [52_484.0, 27_286.0]);
        let mut random = Rand48::INITIAL;
        assert_eq!((random.next_fraction() * 1000.0).floor() + 1.0, 397.0);
    }
}
