//! The library `bit`: operations on 32-bit integers. Numbers are taken modulo 2^32; results are signed.

use mlua::{Lua, Table, Value};

use super::library::{Arguments, LibraryError, LibraryResult, one, register};

type Unary = fn(u32) -> u32;
type Binary = fn(u32, u32) -> u32;

/// Converts a number to 32 bits, rounding half to even.
fn to_bits(number: f64) -> u32 {
    let number = number.round_ties_even();
    if number.is_finite() {
        number.rem_euclid(4_294_967_296.0) as u32
    } else {
        0
    }
}

fn operand(lua: &Lua, args: &Arguments<'_>, position: usize) -> Result<u32, LibraryError> {
    Ok(to_bits(args.number(lua, position)?))
}

fn result(bits: u32) -> LibraryResult {
    one(Value::Number(f64::from(bits as i32)))
}

/// The library's functions.
pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let unary: [(&str, Unary); 3] = [
        ("tobit", |a| a),
        ("bnot", |a| !a),
        ("bswap", u32::swap_bytes),
    ];
    for (name, operation) in unary {
        register(lua, &table, name, move |lua, args| {
            result(operation(operand(lua, args, 1)?))
        })?;
    }
    let many: [(&str, Binary); 3] = [
        ("band", |a, b| a & b),
        ("bor", |a, b| a | b),
        ("bxor", |a, b| a ^ b),
    ];
    for (name, operation) in many {
        register(lua, &table, name, move |lua, args| {
            let mut bits = operand(lua, args, 1)?;
            for position in 2..=args.len() {
                bits = operation(bits, operand(lua, args, position)?);
            }
            result(bits)
        })?;
    }
    let shifts: [(&str, Binary); 5] = [
        ("lshift", |a, n| a << n),
        ("rshift", |a, n| a >> n),
        ("arshift", |a, n| (a as i32 >> n) as u32),
        ("rol", u32::rotate_left),
        ("ror", u32::rotate_right),
    ];
    for (name, operation) in shifts {
        register(lua, &table, name, move |lua, args| {
            let (bits, count) = (operand(lua, args, 1)?, operand(lua, args, 2)?);
            result(operation(bits, count & 31))
        })?;
    }
    register(lua, &table, "tohex", to_hex)?;
    Ok(table)
}

/// `bit.tohex(x [, n])`: the last `n` digits; a negative `n` means capital letters.
fn to_hex(lua: &Lua, args: &Arguments<'_>) -> LibraryResult {
    let bits = operand(lua, args, 1)?;
    let count = match args.value(2) {
        Value::Nil => 8,
        _ => operand(lua, args, 2)? as i32,
    };
    let text = match count < 0 {
        true => format!("{bits:08X}"),
        false => format!("{bits:08x}"),
    };
    let digits = usize::try_from(count.unsigned_abs()).unwrap_or(8).min(8);
    one(Value::String(lua.create_string(&text[8 - digits..])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_around_to_32_bits() {
        assert_eq!(to_bits(-1.0), u32::MAX);
        assert_eq!(to_bits(4_294_967_297.0), 1);
        assert_eq!(to_bits(2.5), 2);
        assert_eq!(to_bits(f64::NAN), 0);
    }
}
