//! Parsing and formatting of sizes such as `4096`, `64kb`, `1gb`.

use farbank_server::ClientsMemory;

/// Parses a number of bytes with an optional unit. Units are powers of 1024.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let scale: u64 = match unit.trim().trim_end_matches('b').trim_end_matches('i') {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => {
            return Err(format!(
                "'{unit}' is not a unit of size: use b, kb, mb, gb or tb"
            ));
        }
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "a size must start with a whole number".to_owned())?;
    number
        .checked_mul(scale)
        .ok_or_else(|| "the size is 16 exabytes or more".to_owned())
}

/// Parses a size as [`parse`] does, or a percentage of the memory available to the process.
pub(crate) fn parse_clients_memory(text: &str) -> Result<ClientsMemory, String> {
    let Some(digits) = text.trim().strip_suffix('%') else {
        return parse(text).map(ClientsMemory::Bytes);
    };
    let percent = digits.trim().parse().ok().filter(|percent| *percent <= 100);
    let percent =
        percent.ok_or_else(|| "a percentage must be a whole number from 0 to 100".to_owned())?;
    Ok(ClientsMemory::Percent(percent))
}

/// Formats a number of bytes with a binary unit.
pub(crate) fn human(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut units = ["B", "KiB", "MiB", "GiB", "TiB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    for larger in units {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if unit == "B" {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_written() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64kb", 65_536),
            ("1 GB", 1 << 30),
            ("2m", 2 << 20),
            ("3GiB", 3 << 30),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "gb", "1x", "-1", "1.5gb", "99999999999tb"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(human(1 << 30), "1.0 GiB");
        assert_eq!(human(100), "100 B");
    }
}
