//! Parsers of options whose values are the names of a library's enum.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use farbank_bench::registry::ExperimentKey;

/// A value of a library's enum, or the word that stands for all values or leaves the choice to the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AnyOr<T> {
    /// The word, such as `all` or `auto`.
    Any,
    /// One value.
    One(T),
}

/// Returns a parser of names. `rows` has each name, its description in the long help, which may be empty, and its
/// value.
pub(crate) fn named<T: Copy + Send + Sync + 'static>(
    rows: impl IntoIterator<Item = (&'static str, &'static str, T)>,
) -> impl TypedValueParser<Value = T> {
    let (mut possible, mut values) = (Vec::new(), Vec::new());
    for (name, help, value) in rows {
        let one = PossibleValue::new(name);
        possible.push(match help {
            "" => one,
            help => one.help(help),
        });
        values.push((name, value));
    }
    PossibleValuesParser::new(possible).map(move |text: String| {
        let mut values = values.iter();
        let (_, value) = values
            .find(|(name, _)| *name == text)
            .expect("the parser accepts only these names");
        *value
    })
}

/// Returns a parser of the names of `values`.
pub(crate) fn one_of<T: Copy + Send + Sync + 'static>(
    values: &[T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> + use<T> {
    described(values, name, |_| "")
}

/// Returns a parser of the names of `values`, with the descriptions that `help` returns.
pub(crate) fn described<T: Copy + Send + Sync + 'static>(
    values: &[T],
    name: fn(T) -> &'static str,
    help: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> + use<T> {
    let row = |value: &T| (name(*value), help(*value), *value);
    named(values.iter().map(row).collect::<Vec<_>>())
}

/// Returns a parser of the names of a benchmark's experiments.
pub(crate) fn experiment<K: ExperimentKey>() -> impl TypedValueParser<Value = K> {
    named(K::ROWS.iter().map(|row| (row.name, row.question, row.run)))
}
