//! Policies: how much to draft, from which drafter, and whether a draft is worth the target's time.

pub mod payoff;
