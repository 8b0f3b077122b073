//! LCS: the longest common subsequence of two strings.
//!
//! The table of the classic algorithm has a row for each byte of the first string. Neighbouring cells of a row differ
//! by 0 or 1, so a row is a bit vector: bit j is 0 if the cell after byte j of the second string exceeds the cell
//! before it. One row follows from the row before with a few operations for each 64 cells (Crochemore and others, "A
//! fast and practical bit-vector algorithm for the longest common subsequence problem", 2001). The bits are also the
//! directions of the way back from the last cell: where two bytes differ, the way leads to the cell of the previous row
//! exactly if the cell exceeds its left neighbour, as in Redis.

use farbank_store::Key;

use super::context::CommandContext;
use super::error::{CommandError, NOT_INTEGER, SYNTAX};
use super::text;
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, reply};

/// Most cells of the table. Its bits take 256 MiB, and filling them takes about 100 ms.
const CELLS_MAX: u64 = 1 << 31;
/// Most cells that a worker computes, which takes less than a millisecond.
const SHORT_CELLS: u64 = 1 << 22;

/// Parsed options of LCS.
#[derive(Default)]
struct LcsOptions {
    len: bool,
    idx: bool,
    with_match_len: bool,
    match_len_min: i64,
}

fn lcs_options(args: Args<'_>) -> Result<LcsOptions, CommandError> {
    let mut options = LcsOptions::default();
    let mut at = 3;
    while let Some(option) = args.get(at) {
        match text::option(option).as_slice() {
            b"idx" => options.idx = true,
            b"len" => options.len = true,
            b"withmatchlen" => options.with_match_len = true,
            b"minmatchlen" if at + 1 < args.len() => {
                at += 1;
                options.match_len_min = parse_i64(args.at(at)).ok_or(NOT_INTEGER)?;
            }
            _ => return Err(SYNTAX),
        }
        at += 1;
    }
    if options.idx && options.len {
        let text = "ERR If you want both the length and indexes, please just use IDX.";
        return Err(CommandError::Fixed(text));
    }
    Ok(options)
}

/// `LCS key1 key2 [LEN] [IDX] [MINMATCHLEN length] [WITHMATCHLEN]`
pub(super) fn lcs(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let keys: [Key<'_>; 2] = [ctx.key(args.at(1)), ctx.key(args.at(2))];
    let values = ctx.read_strings(&keys)?;
    let options = lcs_options(args)?;
    let a = values.get(0).unwrap_or_default();
    let b = values.get(1).unwrap_or_default();
    // A row is a whole number of words.
    let cells = (a.len() as u64).saturating_mul(b.len().next_multiple_of(64) as u64);
    if cells > CELLS_MAX {
        let text = "ERR Insufficient memory, failed allocating transient memory for LCS";
        return Err(CommandError::Fixed(text));
    }
    if cells > SHORT_CELLS && !ctx.executes_long {
        return Err(CommandError::Long);
    }
    let table = LcsTable::new(a, b);
    let len = table.len();
    if options.idx {
        reply_matches(ctx, &table.matches(), len, &options);
    } else if options.len {
        reply::integer(ctx.out, i64::try_from(len).unwrap_or(i64::MAX));
    } else {
        reply::bulk(ctx.out, &table.text());
    }
    Ok(())
}

/// Replies with the runs of equal bytes, from the last to the first.
fn reply_matches(
    ctx: &mut CommandContext<'_>,
    matches: &[LcsMatch],
    len: usize,
    options: &LcsOptions,
) {
    let wanted =
        |found: &&LcsMatch| i64::try_from(found.len).unwrap_or(i64::MAX) >= options.match_len_min;
    let integer = |ctx: &mut CommandContext<'_>, value: usize| {
        reply::integer(ctx.out, i64::try_from(value).unwrap_or(i64::MAX));
    };
    reply::map(ctx.out, ctx.client.resp, 2);
    reply::bulk(ctx.out, b"matches");
    reply::array(ctx.out, matches.iter().filter(wanted).count());
    for found in matches.iter().filter(wanted) {
        reply::array(ctx.out, 2 + usize::from(options.with_match_len));
        for start in [found.a, found.b] {
            reply::array(ctx.out, 2);
            integer(ctx, start);
            integer(ctx, start + found.len - 1);
        }
        if options.with_match_len {
            integer(ctx, found.len);
        }
    }
    reply::bulk(ctx.out, b"len");
    integer(ctx, len);
}

/// A run of equal bytes: its positions in both strings and its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct LcsMatch {
    a: usize,
    b: usize,
    len: usize,
}

/// The rows of the table, as bits.
struct LcsTable<'a> {
    a: &'a [u8],
    b: &'a [u8],
    /// Words of a row.
    row_words: usize,
    /// The row after each byte of `a`.
    rows: Vec<u64>,
}

impl<'a> LcsTable<'a> {
    fn new(a: &'a [u8], b: &'a [u8]) -> LcsTable<'a> {
        let row_words = b.len().div_ceil(64);
        let masks = masks(a, b, row_words);
        let mut rows = Vec::with_capacity(a.len() * row_words);
        let mut before = vec![u64::MAX; row_words];
        for &byte in a {
            let mask = &masks[usize::from(byte)];
            let mut carry = false;
            for (word, &mask) in before.iter_mut().zip(mask) {
                let equal = *word & mask;
                let (sum, over) = word.overflowing_add(equal);
                let (sum, over_again) = sum.overflowing_add(u64::from(carry));
                carry = over || over_again;
                *word = sum | (*word & !mask);
            }
            rows.extend_from_slice(&before);
        }
        LcsTable {
            a,
            b,
            row_words,
            rows,
        }
    }

    /// Whether the cell after byte `i` of `a` and byte `j` of `b` exceeds its left neighbour.
    fn grows(&self, i: usize, j: usize) -> bool {
        self.rows[i * self.row_words + j / 64] >> (j % 64) & 1 == 0
    }

    /// Length of the longest common subsequence.
    fn len(&self) -> usize {
        let Some(last) = self.a.len().checked_sub(1) else {
            return 0;
        };
        (0..self.b.len()).filter(|&j| self.grows(last, j)).count()
    }

    /// Runs of equal bytes on the way back from the last cell.
    fn matches(&self) -> Vec<LcsMatch> {
        let mut matches = Vec::new();
        let (mut i, mut j) = (self.a.len(), self.b.len());
        let mut run: Option<LcsMatch> = None;
        while i > 0 && j > 0 {
            if self.a[i - 1] == self.b[j - 1] {
                (i, j) = (i - 1, j - 1);
                let len = run.map_or(1, |run| run.len + 1);
                run = Some(LcsMatch { a: i, b: j, len });
                continue;
            }
            matches.extend(run.take());
            match self.grows(i - 1, j - 1) {
                true => i -= 1,
                false => j -= 1,
            }
        }
        matches.extend(run);
        matches
    }

    /// The longest common subsequence.
    fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for run in self.matches().iter().rev() {
            text.extend_from_slice(&self.a[run.a..run.a + run.len]);
        }
        text
    }
}

/// For each byte of `a`, the positions in `b` that hold it, as bits. Empty for other bytes.
fn masks(a: &[u8], b: &[u8], row_words: usize) -> Vec<Vec<u64>> {
    let mut masks = vec![Vec::new(); 256];
    for &byte in a {
        masks[usize::from(byte)].resize(row_words, 0);
    }
    for (j, &byte) in b.iter().enumerate() {
        if let Some(word) = masks[usize::from(byte)].get_mut(j / 64) {
            *word |= 1 << (j % 64);
        }
    }
    masks
}

#[cfg(test)]
mod tests {
    use farbank_pm::rng::Rng;

    use super::*;

    /// The classic table, and the way back as Redis walks it.
    fn plain(a: &[u8], b: &[u8]) -> Vec<u8> {
        let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
        for i in 1..=a.len() {
            for j in 1..=b.len() {
                table[i][j] = match a[i - 1] == b[j - 1] {
                    true => table[i - 1][j - 1] + 1,
                    false => table[i - 1][j].max(table[i][j - 1]),
                };
            }
        }
        let (mut i, mut j, mut text) = (a.len(), b.len(), Vec::new());
        while i > 0 && j > 0 {
            if a[i - 1] == b[j - 1] {
                text.push(a[i - 1]);
                (i, j) = (i - 1, j - 1);
            } else if table[i - 1][j] > table[i][j - 1] {
                i -= 1;
            } else {
                j -= 1;
            }
        }
        text.reverse();
        assert_eq!(text.len(), table[a.len()][b.len()]);
        text
    }

    #[test]
    fn the_bit_rows_find_the_subsequence_that_the_classic_table_finds() {
        let mut rng = Rng::new(1);
        for _ in 0..300 {
            let mut word = |letters| -> Vec<u8> {
                (0..rng.below(200))
                    .map(|_| b'a' + rng.below(letters) as u8)
                    .collect()
            };
            let (a, b) = (word(4), word(5));
            let table = LcsTable::new(&a, &b);
            assert_eq!(table.text(), plain(&a, &b));
            assert_eq!(table.len(), table.text().len());
        }
    }
}
