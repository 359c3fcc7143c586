// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

interface IToken {
    function transfer(address to, uint256 value) external returns (bool);
    function transferFrom(address from, address to, uint256 value) external returns (bool);
}

/// A constant-product pair of two tokens: reserve0 * reserve1 never falls. Swaps pay 0.3 % to whoever provides liquidity.
/// Every swap writes the same two reserves, which makes it the workload in which all transactions of a batch conflict.
contract Amm {
    IToken public immutable token0;
    IToken public immutable token1;
    uint256 public reserve0;
    uint256 public reserve1;
    uint256 public totalShares;
    mapping(address => uint256) public sharesOf;

    uint256 private constant FEE_PER_MILLE = 3;

    event Swap(address indexed trader, address indexed tokenIn, uint256 amountIn, uint256 amountOut);
    event LiquidityAdded(address indexed provider, uint256 amount0, uint256 amount1, uint256 shares);
    event LiquidityRemoved(address indexed provider, uint256 amount0, uint256 amount1, uint256 shares);

    error UnknownToken(address token);
    error TooLittleOut(uint256 amountOut, uint256 least);
    error NoLiquidity();
    error NotYourShares(uint256 owned, uint256 asked);
    error TransferFailed(address token);

    constructor(IToken token0_, IToken token1_) {
        token0 = token0_;
        token1 = token1_;
    }

    function addLiquidity(uint256 amount0, uint256 amount1) external returns (uint256 shares) {
        if (totalShares == 0) {
            shares = sqrt(amount0 * amount1);
        } else {
            uint256 by0 = (amount0 * totalShares) / reserve0;
            uint256 by1 = (amount1 * totalShares) / reserve1;
            shares = by0 < by1 ? by0 : by1;
        }
        if (shares == 0) revert NoLiquidity();
        reserve0 += amount0;
        reserve1 += amount1;
        totalShares += shares;
        sharesOf[msg.sender] += shares;
        emit LiquidityAdded(msg.sender, amount0, amount1, shares);
        pull(token0, amount0);
        pull(token1, amount1);
    }

    function removeLiquidity(uint256 shares) external returns (uint256 amount0, uint256 amount1) {
        uint256 owned = sharesOf[msg.sender];
        if (shares == 0 || owned < shares) revert NotYourShares(owned, shares);
        amount0 = (shares * reserve0) / totalShares;
        amount1 = (shares * reserve1) / totalShares;
        sharesOf[msg.sender] = owned - shares;
        totalShares -= shares;
        reserve0 -= amount0;
        reserve1 -= amount1;
        emit LiquidityRemoved(msg.sender, amount0, amount1, shares);
        push(token0, amount0);
        push(token1, amount1);
    }

    /// Sells amountIn of tokenIn for at least leastOut of the other token.
    function swap(address tokenIn, uint256 amountIn, uint256 leastOut) external returns (uint256 amountOut) {
        bool zeroIn = tokenIn == address(token0);
        if (!zeroIn && tokenIn != address(token1)) revert UnknownToken(tokenIn);
        (uint256 reserveIn, uint256 reserveOut) = zeroIn ? (reserve0, reserve1) : (reserve1, reserve0);
        if (reserveIn == 0 || reserveOut == 0) revert NoLiquidity();

        uint256 paid = amountIn * (1000 - FEE_PER_MILLE);
        amountOut = (paid * reserveOut) / (reserveIn * 1000 + paid);
        if (amountOut < leastOut) revert TooLittleOut(amountOut, leastOut);

        if (zeroIn) {
            reserve0 = reserveIn + amountIn;
            reserve1 = reserveOut - amountOut;
        } else {
            reserve1 = reserveIn + amountIn;
            reserve0 = reserveOut - amountOut;
        }
        emit Swap(msg.sender, tokenIn, amountIn, amountOut);
        pull(zeroIn ? token0 : token1, amountIn);
        push(zeroIn ? token1 : token0, amountOut);
    }

    function pull(IToken token, uint256 amount) private {
        if (!token.transferFrom(msg.sender, address(this), amount)) revert TransferFailed(address(token));
    }

    function push(IToken token, uint256 amount) private {
        if (!token.transfer(msg.sender, amount)) revert TransferFailed(address(token));
    }

    /// Newton's method, rounded down.
    function sqrt(uint256 x) private pure returns (uint256 y) {
        if (x == 0) return 0;
        uint256 next = x / 2 + 1;
        y = x;
        while (next < y) {
            y = next;
            next = (x / y + y) / 2;
        }
    }
}
