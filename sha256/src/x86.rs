//! Two compressions on the SHA extensions of x86-64, instruction by instruction side by side.
//!
//! The unit keeps a state in two registers: words a, b, e, f and words c, d, g, h. One instruction does two rounds of 64; two
//! others compute the words of the message that later rounds add, four at a time.

use std::arch::x86_64::{
    __m128i, _mm_add_epi32, _mm_alignr_epi8, _mm_blend_epi16, _mm_loadu_si128, _mm_set_epi64x,
    _mm_setr_epi32, _mm_sha256msg1_epu32, _mm_sha256msg2_epu32, _mm_sha256rnds2_epu32, _mm_shuffle_epi8,
    _mm_shuffle_epi32, _mm_storeu_si128,
};

use crate::{Block, State};

/// Messages that are compressed side by side. Two keep the SHA unit busy, and their registers suffice for no more.
const LANES: usize = 2;

/// The same register of each message.
type Lanes = [__m128i; LANES];

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

/// Whether the CPU can run [`compress_pair`]. The answer is kept by the standard library: one load and one test a call.
#[inline]
pub(crate) fn is_available() -> bool {
    is_x86_feature_detected!("sha") && is_x86_feature_detected!("sse4.1") && is_x86_feature_detected!("ssse3")
}

/// Compresses two messages of as many blocks as the shorter one has.
#[target_feature(enable = "sha,sse4.1,ssse3")]
pub(crate) fn compress_pair(states: &mut [State; LANES], messages: [&[Block]; LANES]) {
    let [first, second] = states.each_ref().map(|state| load_state(state));
    let (mut abef, mut cdgh) = ([first.0, second.0], [first.1, second.1]);
    for (first, second) in messages[0].iter().zip(messages[1]) {
        let before = (abef, cdgh);
        let [first, second] = [load_block(first), load_block(second)];
        let mut words: [Lanes; 4] = std::array::from_fn(|i| [first[i], second[i]]);
        for (step, &words) in words.iter().enumerate() {
            four_rounds(step, &mut abef, &mut cdgh, words);
        }
        // Written out, so that words stay in registers.
        sixteen_rounds(4, &mut abef, &mut cdgh, &mut words);
        sixteen_rounds(8, &mut abef, &mut cdgh, &mut words);
        sixteen_rounds(12, &mut abef, &mut cdgh, &mut words);
        abef = add(abef, before.0);
        cdgh = add(cdgh, before.1);
    }
    for (lane, state) in states.iter_mut().enumerate() {
        store_state(state, abef[lane], cdgh[lane]);
    }
}

/// Rounds `4 * step` to `4 * step + 3`.
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn four_rounds(step: usize, abef: &mut Lanes, cdgh: &mut Lanes, words: Lanes) {
    let constant = |i: usize| ROUND_CONSTANTS[4 * step + i] as i32;
    let constants = _mm_setr_epi32(constant(0), constant(1), constant(2), constant(3));
    let low = add(words, [constants; LANES]);
    // After two rounds a, b, e, f stand where c, d, g, h were: the names change places.
    cdgh[0] = _mm_sha256rnds2_epu32(cdgh[0], abef[0], low[0]);
    cdgh[1] = _mm_sha256rnds2_epu32(cdgh[1], abef[1], low[1]);
    let high = [_mm_shuffle_epi32::<0b00_00_11_10>(low[0]), _mm_shuffle_epi32::<0b00_00_11_10>(low[1])];
    abef[0] = _mm_sha256rnds2_epu32(abef[0], cdgh[0], high[0]);
    abef[1] = _mm_sha256rnds2_epu32(abef[1], cdgh[1], high[1]);
}

/// Rounds `4 * step` to `4 * step + 15`, with the words that follow the last sixteen.
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn sixteen_rounds(step: usize, abef: &mut Lanes, cdgh: &mut Lanes, words: &mut [Lanes; 4]) {
    for i in 0..4 {
        words[i] = next_words([words[i], words[(i + 1) % 4], words[(i + 2) % 4], words[(i + 3) % 4]]);
        four_rounds(step + i, abef, cdgh, words[i]);
    }
}

/// The four words of each message that follow the last sixteen, oldest first.
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn next_words([w0, w1, w2, w3]: [Lanes; 4]) -> Lanes {
    let begun = [_mm_sha256msg1_epu32(w0[0], w1[0]), _mm_sha256msg1_epu32(w0[1], w1[1])];
    let sevenths = [_mm_alignr_epi8::<4>(w3[0], w2[0]), _mm_alignr_epi8::<4>(w3[1], w2[1])];
    let sums = add(begun, sevenths);
    [_mm_sha256msg2_epu32(sums[0], w3[0]), _mm_sha256msg2_epu32(sums[1], w3[1])]
}

#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn add(a: Lanes, b: Lanes) -> Lanes {
    [_mm_add_epi32(a[0], b[0]), _mm_add_epi32(a[1], b[1])]
}

/// The sixteen words of a block, which are big-endian.
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn load_block(block: &Block) -> [__m128i; 4] {
    let swap = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
    std::array::from_fn(|i| {
        // SAFETY: `i` is less than 4, so the 16 bytes lie in the block of 64; the load may be unaligned.
        let words = unsafe { _mm_loadu_si128(block.as_ptr().cast::<__m128i>().add(i)) };
        _mm_shuffle_epi8(words, swap)
    })
}

/// Words a, b, e, f and words c, d, g, h of a state, each with the first word highest.
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn load_state(state: &State) -> (__m128i, __m128i) {
    let words = state.as_ptr().cast::<__m128i>();
    // SAFETY: a state has 32 bytes, of which the two unaligned loads read one half each.
    let (dcba, hgfe) = unsafe { (_mm_loadu_si128(words), _mm_loadu_si128(words.add(1))) };
    let (cdab, efgh) = (_mm_shuffle_epi32::<0b10_11_00_01>(dcba), _mm_shuffle_epi32::<0b00_01_10_11>(hgfe));
    (_mm_alignr_epi8::<8>(cdab, efgh), _mm_blend_epi16::<0xf0>(efgh, cdab))
}

/// The reverse of [`load_state`].
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3")]
fn store_state(state: &mut State, abef: __m128i, cdgh: __m128i) {
    let (feba, dchg) = (_mm_shuffle_epi32::<0b00_01_10_11>(abef), _mm_shuffle_epi32::<0b10_11_00_01>(cdgh));
    let words = state.as_mut_ptr().cast::<__m128i>();
    // SAFETY: a state has 32 bytes, of which the two unaligned stores write one half each.
    unsafe {
        _mm_storeu_si128(words, _mm_blend_epi16::<0xf0>(feba, dchg));
        _mm_storeu_si128(words.add(1), _mm_alignr_epi8::<8>(dchg, feba));
    }
}
