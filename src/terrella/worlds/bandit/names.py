"""Names of the arms: what sounds safe pays little and always, what sounds daring pays well and seldom."""

STEADY = (
    "Quiet Mill", "Stone Well", "Old Orchard", "Village Bakery", "Patient Oak", "Copper Kettle", "Sunday Ledger",
    "Wool Blanket", "Harbour Bench", "Slow Canal", "Kitchen Clock", "Garden Wall", "Pine Lantern", "Tea Cellar",
    "Gentle Plough", "Even Keel", "Grain Store", "Chalk Path", "Library Lamp", "Meadow Gate",
)  # fmt: skip
"""Arms that pay the low amount each time."""

BOLD = (
    "Wild Comet", "Dragon Dice", "Storm Lottery", "Tiger Rocket", "Cliff Leap", "Thunder Gamble", "Pirate Map",
    "Lightning Wheel", "Volcano Dive", "Falcon Duel", "Midnight Heist", "Blazing Kite", "Shark Circus",
    "Avalanche Run", "Jungle Jackpot", "Desert Mirage", "Cannon Acrobat", "Whirlpool Race", "Phantom Joker",
    "Burning Hoop",
)  # fmt: skip
"""Arms that pay the high amount now and then, and more on average."""
