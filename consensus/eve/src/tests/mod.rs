//! Whole worlds of validators: real cores over a simulated network, disks that keep what was durable, crashes between any two steps,
//! and validators that lie.

mod campaign;
mod cases;
mod orders;
mod returns;
mod statements;
mod traitor;
mod world;
