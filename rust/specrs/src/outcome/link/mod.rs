//! Messages between the target's process and the drafter's: a ring of shared memory each way, and a doorbell.
//!
//! [`Ring`] carries bytes, [`wire`] gives them a meaning, [`Channel`] is one side's end: it writes, watches for
//! an answer for a while, and sleeps when none comes.

mod channel;
mod ring;
pub mod wire;

pub use channel::Channel;
pub use ring::{Ring, bytes_of};
pub use wire::{Answer, Message, Question, Reply, Start};
