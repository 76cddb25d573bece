//! What a match is worth: the odds that its continuation is the one to come.
//!
//! The tables are a maximum-likelihood fit of the model in `vote.rs` to replayed text: unseen source files, new versions
//! of files whose old version is cached, and prompts that hold the old version. They differ by where the match lies,
//! because the same length means more next to the place that the text has been following.

/// Where a match lies, which decides what its length is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// In the request's own text.
    Own,
    /// In the request's own text, near the place it has been following.
    OwnNear,
    /// In finished text.
    History,
    /// In finished text, near the place the request has been following.
    HistoryNear,
    /// No match: the followed text goes on as if the last token replaced one of its own.
    Replaced,
    /// No match: the followed text goes on as if the last token was put in between.
    Inserted,
}

const LENGTHS: [usize; 16] = [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64];

const ODDS: [[f32; 16]; 6] = [
    [0.16, 0.17, 0.44, 0.91, 1.33, 1.69, 2.14, 4.18, 6.04, 7.53, 13.84, 21.82, 27.23, 39.28, 56.60, 64.32],
    [0.53, 0.94, 1.92, 3.02, 3.86, 4.62, 5.41, 7.89, 10.48, 13.02, 18.49, 25.57, 34.10, 58.31, 157.31, 200.0],
    [0.03, 0.03, 0.07, 0.15, 0.26, 0.52, 0.92, 1.85, 3.55, 4.84, 10.34, 20.58, 27.24, 35.22, 84.20, 178.48],
    [0.46, 0.71, 1.39, 2.64, 3.81, 5.25, 6.70, 9.67, 13.19, 16.79, 24.32, 35.59, 51.32, 95.22, 200.0, 200.0],
    [0.14, 1.15, 2.69, 4.24, 4.90, 5.51, 5.88, 6.78, 7.98, 9.07, 11.24, 17.62, 19.88, 20.40, 21.47, 22.59],
    [0.06, 0.45, 1.11, 2.27, 3.37, 4.20, 5.04, 6.45, 7.72, 9.20, 11.52, 13.23, 13.94, 14.31, 15.06, 15.85],
];

/// Most tokens that the tables tell apart; longer matches weigh as this.
const MOST: usize = 64;

/// The tables for every length.
#[derive(Clone, Debug)]
pub struct Odds([[f32; MOST + 1]; 6]);

impl Default for Odds {
    fn default() -> Self {
        let at = |row: &[f32; 16], length: usize| {
            let above = LENGTHS.partition_point(|&known| known < length);
            if LENGTHS[above] == length {
                return row[above];
            }
            let (low, high) = (LENGTHS[above - 1], LENGTHS[above]);
            let share = (length - low) as f32 / (high - low) as f32;
            row[above - 1] + share * (row[above] - row[above - 1])
        };
        Self(std::array::from_fn(|kind| std::array::from_fn(|length| at(&ODDS[kind], length))))
    }
}

impl Odds {
    /// The odds for a match of `length` tokens.
    #[inline]
    pub fn of(&self, kind: Evidence, length: usize) -> f32 {
        self.0[kind as usize][length.min(MOST)]
    }
}
