//! Two interleaved compressions on the SHA extensions of x86-64.
//!
//! The unit keeps a state in two registers: words a, b, e, f and words c, d, g, h. One instruction does two of the 64
//! rounds. Two others compute the message words that later rounds add, four at a time.

use std::arch::x86_64::{
    __m128i, _mm_add_epi32, _mm_alignr_epi8, _mm_blend_epi16, _mm_loadu_si128, _mm_set_epi64x,
    _mm_setr_epi32, _mm_setzero_si128, _mm_sha256msg1_epu32, _mm_sha256msg2_epu32, _mm_sha256rnds2_epu32,
    _mm_shuffle_epi8, _mm_shuffle_epi32, _mm_storeu_si128,
};

use crate::{Block, State};

/// One register for each of `N` messages. Two messages keep the SHA unit busy; the CPU has too few registers for more.
type Lanes<const N: usize> = [__m128i; N];

/// FIPS 180-4, section 4.2.2.
const ROUND_CONSTANTS: [u32; 64] = [
    0x428a_2f98,
    0x7137_4491,
    0xb5c0_fbcf,
    0xe9b5_dba5,
    0x3956_c25b,
    0x59f1_11f1,
    0x923f_82a4,
    0xab1c_5ed5,
    0xd807_aa98,
    0x1283_5b01,
    0x2431_85be,
    0x550c_7dc3,
    0x72be_5d74,
    0x80de_b1fe,
    0x9bdc_06a7,
    0xc19b_f174,
    0xe49b_69c1,
    0xefbe_4786,
    0x0fc1_9dc6,
    0x240c_a1cc,
    0x2de9_2c6f,
    0x4a74_84aa,
    0x5cb0_a9dc,
    0x76f9_88da,
    0x983e_5152,
    0xa831_c66d,
    0xb003_27c8,
    0xbf59_7fc7,
    0xc6e0_0bf3,
    0xd5a7_9147,
    0x06ca_6351,
    0x1429_2967,
    0x27b7_0a85,
    0x2e1b_2138,
    0x4d2c_6dfc,
    0x5338_0d13,
    0x650a_7354,
    0x766a_0abb,
    0x81c2_c92e,
    0x9272_2c85,
    0xa2bf_e8a1,
    0xa81a_664b,
    0xc24b_8b70,
    0xc76c_51a3,
    0xd192_e819,
    0xd699_0624,
    0xf40e_3585,
    0x106a_a070,
    0x19a4_c116,
    0x1e37_6c08,
    0x2748_774c,
    0x34b0_bcb5,
    0x391c_0cb3,
    0x4ed8_aa4a,
    0x5b9c_ca4f,
    0x682e_6ff3,
    0x748f_82ee,
    0x78a5_636f,
    0x84c8_7814,
    0x8cc7_0208,
    0x90be_fffa,
    0xa450_6ceb,
    0xbef9_a3f7,
    0xc671_78f2,
];

/// Whether the CPU has the features that this module's functions are compiled for. The standard library caches the
/// answer: a call costs a load and a test.
#[inline]
pub(crate) fn is_available() -> bool {
    is_x86_feature_detected!("sha") && is_x86_feature_detected!("sse4.1") && is_x86_feature_detected!("ssse3")
}

/// Compresses messages with as many blocks as the first one has.
///
/// # Panics
/// If another message has fewer blocks.
#[target_feature(enable = "sha,sse4.1,ssse3")]
pub(crate) fn compress<const N: usize>(states: &mut [State; N], messages: [&[Block]; N]) {
    let (mut abef, mut cdgh) = ([_mm_setzero_si128(); N], [_mm_setzero_si128(); N]);
    for lane in 0..N {
        (abef[lane], cdgh[lane]) = load_state(&states[lane]);
    }
    all_blocks(&mut abef, &mut cdgh, messages);
    for lane in 0..N {
        store_halves(&mut states[lane], plain_order(abef[lane], cdgh[lane]));
    }
}

/// As [`compress`], from one initial state for all, and returns the results as bytes.
#[target_feature(enable = "sha,sse4.1,ssse3")]
pub(crate) fn digests<const N: usize>(initial: &State, messages: [&[Block]; N]) -> [[u8; 32]; N] {
    let (first, second) = load_state(initial);
    let (mut abef, mut cdgh) = ([first; N], [second; N]);
    all_blocks(&mut abef, &mut cdgh, messages);
    finish(abef, cdgh)
}

/// As [`digests`] for messages of one block each, given as two halves.
#[target_feature(enable = "sha,sse4.1,ssse3")]
pub(crate) fn digests_of_halves<const N: usize>(
    initial: &State,
    messages: [[&[u8; 32]; 2]; N],
) -> [[u8; 32]; N] {
    let (first, second) = load_state(initial);
    let (mut abef, mut cdgh) = ([first; N], [second; N]);
    let mut words = [[_mm_setzero_si128(); N]; 4];
    for (lane, [front, back]) in messages.into_iter().enumerate() {
        [words[0][lane], words[1][lane]] = load_words(front);
        [words[2][lane], words[3][lane]] = load_words(back);
    }
    one_block(&mut abef, &mut cdgh, words);
    finish(abef, cdgh)
}

/// Returns states as big-endian bytes.
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn finish<const N: usize>(abef: Lanes<N>, cdgh: Lanes<N>) -> [[u8; 32]; N] {
    let mut digests = [[0; 32]; N];
    for lane in 0..N {
        let [front, back] = plain_order(abef[lane], cdgh[lane]);
        store_halves(&mut digests[lane], [swap_bytes(front), swap_bytes(back)]);
    }
    digests
}

#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn all_blocks<const N: usize>(abef: &mut Lanes<N>, cdgh: &mut Lanes<N>, messages: [&[Block]; N]) {
    for i in 0..messages[0].len() {
        let mut words = [[_mm_setzero_si128(); N]; 4];
        for (lane, message) in messages.iter().enumerate() {
            let block = load_words(&message[i]);
            for (words, four) in words.iter_mut().zip::<[__m128i; 4]>(block) {
                words[lane] = four;
            }
        }
        one_block(abef, cdgh, words);
    }
}

#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn one_block<const N: usize>(abef: &mut Lanes<N>, cdgh: &mut Lanes<N>, mut words: [Lanes<N>; 4]) {
    let before = (*abef, *cdgh);
    for (step, words) in words.iter().enumerate() {
        four_rounds(step, abef, cdgh, *words);
    }
    // Unrolled, so that words stay in registers.
    sixteen_rounds(4, abef, cdgh, &mut words);
    sixteen_rounds(8, abef, cdgh, &mut words);
    sixteen_rounds(12, abef, cdgh, &mut words);
    *abef = add(*abef, before.0);
    *cdgh = add(*cdgh, before.1);
}

/// Rounds `4 * step` to `4 * step + 15`, with the words that follow the last sixteen.
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn sixteen_rounds<const N: usize>(
    step: usize,
    abef: &mut Lanes<N>,
    cdgh: &mut Lanes<N>,
    words: &mut [Lanes<N>; 4],
) {
    for i in 0..4 {
        words[i] = next_words([words[i], words[(i + 1) % 4], words[(i + 2) % 4], words[(i + 3) % 4]]);
        four_rounds(step + i, abef, cdgh, words[i]);
    }
}

/// Rounds `4 * step` to `4 * step + 3`.
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn four_rounds<const N: usize>(step: usize, abef: &mut Lanes<N>, cdgh: &mut Lanes<N>, words: Lanes<N>) {
    let constant = |i: usize| ROUND_CONSTANTS[4 * step + i] as i32;
    let constants = _mm_setr_epi32(constant(0), constant(1), constant(2), constant(3));
    let sums = add(words, [constants; N]);
    // After two rounds, the old a, b, e, f are the new c, d, g, h. The instruction writes the new a, b, e, f over the
    // old c, d, g, h: so the names are swapped.
    for lane in 0..N {
        cdgh[lane] = _mm_sha256rnds2_epu32(cdgh[lane], abef[lane], sums[lane]);
    }
    for lane in 0..N {
        let high = _mm_shuffle_epi32::<0b00_00_11_10>(sums[lane]);
        abef[lane] = _mm_sha256rnds2_epu32(abef[lane], cdgh[lane], high);
    }
}

/// The four words of each message that follow the last sixteen, oldest first.
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn next_words<const N: usize>([w0, w1, w2, w3]: [Lanes<N>; 4]) -> Lanes<N> {
    let mut next = w0;
    for lane in 0..N {
        let begun = _mm_sha256msg1_epu32(w0[lane], w1[lane]);
        let sums = _mm_add_epi32(begun, _mm_alignr_epi8::<4>(w3[lane], w2[lane]));
        next[lane] = _mm_sha256msg2_epu32(sums, w3[lane]);
    }
    next
}

#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn add<const N: usize>(mut a: Lanes<N>, b: Lanes<N>) -> Lanes<N> {
    for lane in 0..N {
        a[lane] = _mm_add_epi32(a[lane], b[lane]);
    }
    a
}

/// Converts four words from or to big-endian.
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn swap_bytes(words: __m128i) -> __m128i {
    _mm_shuffle_epi8(words, _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203))
}

/// The words of a block or of a half, four in each register.
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn load_words<const BYTES: usize, const FOURS: usize>(bytes: &[u8; BYTES]) -> [__m128i; FOURS] {
    const { assert!(BYTES == 16 * FOURS) };
    let mut words = [_mm_setzero_si128(); FOURS];
    for (four, bytes) in words.iter_mut().zip(bytes.as_chunks::<16>().0) {
        // SAFETY: the load reads the 16 bytes of the reference, and may be unaligned.
        *four = swap_bytes(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) });
    }
    words
}

/// Words a, b, e, f and words c, d, g, h of a state, each with the first word highest.
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn load_state(state: &State) -> (__m128i, __m128i) {
    let words = state.as_ptr().cast::<__m128i>();
    // SAFETY: each of the two unaligned loads reads one half of the state's 32 bytes.
    let (dcba, hgfe) = unsafe { (_mm_loadu_si128(words), _mm_loadu_si128(words.add(1))) };
    let (cdab, efgh) = (_mm_shuffle_epi32::<0b10_11_00_01>(dcba), _mm_shuffle_epi32::<0b00_01_10_11>(hgfe));
    (_mm_alignr_epi8::<8>(cdab, efgh), _mm_blend_epi16::<0xf0>(efgh, cdab))
}

/// The reverse of [`load_state`]: words a to d and words e to h, each with the first word lowest.
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn plain_order(abef: __m128i, cdgh: __m128i) -> [__m128i; 2] {
    let (feba, dchg) = (_mm_shuffle_epi32::<0b00_01_10_11>(abef), _mm_shuffle_epi32::<0b10_11_00_01>(cdgh));
    [_mm_blend_epi16::<0xf0>(feba, dchg), _mm_alignr_epi8::<8>(dchg, feba)]
}

/// Every bit pattern is a value of the type.
///
/// # Safety
/// The type has no padding and no invalid values.
unsafe trait AnyBits {}

// SAFETY: words may have any value.
unsafe impl AnyBits for State {}
// SAFETY: so may bytes.
unsafe impl AnyBits for [u8; 32] {}

/// Stores a value of 32 bytes: a state, or a digest.
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn store_halves<T: AnyBits>(to: &mut T, [front, back]: [__m128i; 2]) {
    const { assert!(size_of::<T>() == 32) };
    let to = std::ptr::from_mut(to).cast::<__m128i>();
    // SAFETY: each of the two unaligned stores writes one half of the 32 bytes of `to`, which may have any value.
    unsafe {
        _mm_storeu_si128(to, front);
        _mm_storeu_si128(to.add(1), back);
    }
}
