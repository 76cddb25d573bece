//! Which slots a row sees, in the order of their positions.

use crate::{Error, Result};

/// What the new rows see.
#[derive(Clone, Copy, Debug)]
pub struct Visible<'a> {
    /// Slots of committed tokens, which every row sees.
    pub committed: usize,
    /// Positions in the text of the slots behind them, the new rows last; siblings of a tree share one.
    pub positions: &'a [i64],
    /// A row at position `p` sees positions above `p - window`; all of them without it.
    pub window: Option<usize>,
    /// (rows, slots behind the committed ones): what each row sees of them, itself and nothing later. What a row sees must
    /// rise in position. Without it, everything up to itself.
    pub flags: Option<&'a [bool]>,
}

/// The slots that one row sees: a run, then single ones.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    pub from: usize,
    pub to: usize,
    pub single: Vec<usize>,
}

impl Seen {
    pub fn count(&self) -> usize {
        self.to - self.from + self.single.len()
    }
}

impl Visible<'_> {
    /// What each row sees.
    pub(super) fn by_row(&self, rows: usize) -> Result<Vec<Seen>> {
        let behind = self.positions.len();
        if behind < rows {
            return Err(Error::invalid(format!("{rows} new rows have {behind} positions")));
        }
        if let Some(flags) = self.flags
            && Some(flags.len()) != rows.checked_mul(behind)
        {
            return Err(Error::invalid(format!("{rows} rows want {rows} x {behind} flags, got {}", flags.len())));
        }
        (0..rows).map(|row| self.of_row(row, behind - rows + row)).collect()
    }

    /// What a row sees that lies in slot `own` behind the committed ones.
    fn of_row(&self, row: usize, own: usize) -> Result<Seen> {
        let position = self.positions[own];
        // The last position that the window leaves out.
        let hidden = self.window.and_then(|window| i64::try_from(window).ok()).map_or(-1, |window| position - window);
        let from = usize::try_from(hidden + 1).unwrap_or(0).min(self.committed);
        let flags = self.flags.map(|flags| &flags[row * self.positions.len()..][..self.positions.len()]);
        if let Some(flags) = flags
            && (!flags[own] || flags[own + 1..].contains(&true))
        {
            return Err(Error::invalid(format!("row {row} must see itself and no later row")));
        }
        let sees = |slot: usize| flags.is_none_or(|flags| flags[slot]) && self.positions[slot] > hidden;
        let leading = (0..=own).take_while(|&slot| sees(slot)).count();
        let single = (leading..=own).filter(|&slot| sees(slot)).map(|slot| self.committed + slot).collect();
        Ok(Seen { from, to: self.committed + leading, single })
    }
}
