//! Look-up in the decode tables: slices of facts, sorted by number.
//!
//! The architectural tables (exit reasons, exit codes) are declared with [`named_codes!`], which
//! states each number and name once and makes both the table and the constants that code tests on.

/// Declares one constant per entry, and the table of `(number, name)` that decodes them.
///
/// An entry is `NUMBER IDENT` where the printed name is the identifier, or `NUMBER IDENT "name"`.
macro_rules! named_codes {
    (
        $(#[$meta:meta])*
        $vis:vis $table:ident: $int:ty {
            $($code:literal $ident:ident $($name:literal)?),* $(,)?
        }
    ) => {
        $(
            #[doc = concat!("`", $crate::detail::table::printed!($ident $($name)?), "`")]
            pub const $ident: $int = $code;
        )*
        $(#[$meta])*
        $vis const $table: &[($int, &str)] =
            &[$(($code, $crate::detail::table::printed!($ident $($name)?))),*];
    };
}

/// The printed name of a [`named_codes!`] entry.
macro_rules! printed {
    ($ident:ident) => {
        stringify!($ident)
    };
    ($ident:ident $name:literal) => {
        $name
    };
}

pub(crate) use {named_codes, printed};

/// The name of `key` in a table sorted by key.
pub(crate) fn name_of<K: Ord + Copy>(table: &[(K, &'static str)], key: K) -> Option<&'static str> {
    let at = table.binary_search_by_key(&key, |&(k, _)| k).ok()?;
    table.get(at).map(|&(_, name)| name)
}

/// The key that a table calls `name`.
pub(crate) fn key_of<K: Copy>(table: &[(K, &'static str)], name: &str) -> Option<K> {
    table.iter().find(|&&(_, n)| n == name).map(|&(key, _)| key)
}

/// The row of `(first, last, value)` that holds `key`, in a table of ranges sorted by their start.
pub(crate) fn range_of<K: Ord + Copy, V>(table: &[(K, K, V)], key: K) -> Option<&(K, K, V)> {
    let after = table.partition_point(|&(first, _, _)| first <= key);
    table.get(after.checked_sub(1)?).filter(|&&(_, last, _)| key <= last)
}

#[cfg(test)]
pub(crate) mod check {
    //! What every table must satisfy.

    use std::collections::BTreeSet;
    use std::fmt::Debug;

    /// Sorted by key, no key twice, no name twice.
    pub(crate) fn one_to_one<K: Ord + Debug>(table: &[(K, &str)]) {
        for pair in table.windows(2) {
            assert!(pair[0].0 < pair[1].0, "{:?} is not before {:?}", pair[0], pair[1]);
        }
        let names: BTreeSet<_> = table.iter().map(|(_, name)| name).collect();
        assert_eq!(names.len(), table.len(), "a name occurs twice");
    }

    /// Ranges are not empty, sorted, and do not overlap.
    pub(crate) fn ranges<K: Ord + Debug, V: Debug>(table: &[(K, K, V)]) {
        for row in table {
            assert!(row.0 <= row.1, "{row:?} is empty");
        }
        for pair in table.windows(2) {
            assert!(pair[0].1 < pair[1].0, "{:?} is not before {:?}", pair[0], pair[1]);
        }
    }

    #[test]
    fn range_edges() {
        let table = [(2u8, 3u8, "a"), (5, 5, "b")];
        ranges(&table);
        let found: Vec<_> =
            (0..8).map(|k| super::range_of(&table, k).map(|row| row.2).unwrap_or("")).collect();
        assert_eq!(found, ["", "", "a", "a", "", "b", "", ""]);
    }
}
