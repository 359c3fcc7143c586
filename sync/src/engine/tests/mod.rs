//! The engine under scripts: who is asked for what, what happens on silence, which effect follows.

mod backfill;
mod epochs;
mod following;
mod mixing;
mod planning;
mod restoring;
mod siege;
mod timing;
