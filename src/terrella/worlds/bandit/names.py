"""Names of the arms: safe-sounding arms pay a little every time, daring ones a lot but rarely.

set(STEADY).isdisjoint(BOLD)
"""

STEADY = (
    "Quiet Mill",
    "Stone Well",
    "Old Orchard",
    "Village Bakery",
    "Patient Oak",
    "Copper Kettle",
    "Sunday Ledger",
    "Wool Blanket",
    "Harbour Bench",
    "Slow Canal",
    "Kitchen Clock",
    "Garden Wall",
    "Pine Lantern",
    "Tea Cellar",
    "Gentle Plough",
    "Even Keel",
    "Grain Store",
    "Chalk Path",
    "Library Lamp",
    "Meadow Gate",
)
"""Arms that pay the low amount every time."""

BOLD = (
    "Wild Comet",
    "Dragon Dice",
    "Storm Lottery",
    "Tiger Rocket",
    "Cliff Leap",
    "Thunder Gamble",
    "Pirate Map",
    "Lightning Wheel",
    "Volcano Dive",
    "Falcon Duel",
    "Midnight Heist",
    "Blazing Kite",
    "Shark Circus",
    "Avalanche Run",
    "Jungle Jackpot",
    "Desert Mirage",
    "Cannon Acrobat",
    "Whirlpool Race",
    "Phantom Joker",
    "Burning Hoop",
)
"""Arms that pay the high amount sometimes, and more on average."""
