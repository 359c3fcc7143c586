//! The engine under scripts: which peer is asked for what, what happens on silence, which effect follows.

mod backfill;
mod epochs;
mod following;
mod mixing;
mod past_states;
mod planning;
mod restoring;
mod siege;
mod timing;
