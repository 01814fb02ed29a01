"""What the offline agent reads aloud: long enough to be interrupted anywhere. Nothing but text."""

from __future__ import annotations

# Each begins with a sentence of half a second: the first audio waits for no more than that.
PASSAGES = (
    "Of course. The harbour wakes long before the town does. At four in the morning the first boats come in with "
    "their lamps still lit, and the gulls that slept on the roofs of the warehouses follow them to the quay. Crates "
    "are lifted, ropes are thrown, and somebody always sings, though nobody could tell you what the song is called. "
    "By six o'clock the buyers have gone, the stones have been washed, and the smell of coffee drifts over from the "
    "houses on the hill. Then the ferry sounds its horn for the first time, and the children who go to school on the "
    "other side run down the steps with their bags. I could tell you more about the people who live here, about the "
    "old pilot and his daughter, or about the winter when the sea froze over and the mail was carried across on "
    "sledges.",
    "I would love to. When you speak, air from your lungs passes two small folds in your throat, and they open and "
    "close more than a hundred times a second. That alone would be only a buzz. It is your mouth that makes a voice "
    "of it: every time you move your tongue or your lips, you change the shape of the room in which the buzz sounds, "
    "and with it the tones that it lets through. We hear those tones as vowels. The short bursts and hisses between "
    "them are the consonants, and most of what we understand is in them, although they are the softest part of "
    "speech. That is why a bad telephone makes it so hard to tell an F from an S, and why we spell our names with "
    "whole words when we are on the phone.",
    "With pleasure. A train that leaves the coast in the morning has to climb for two hours before it reaches the "
    "plateau. In the old days a second engine was coupled on at the last station in the valley, and it pushed from "
    "behind until the summit, where it dropped back and rolled home alone. The driver of that engine saw more "
    "sunrises than anybody else in the country, and he kept a notebook in which he wrote down the colour of each one. "
    "When the line was electrified the pushing came to an end, but the notebook is still there, in a glass case in "
    "the waiting room, open at a page that says only: grey, then suddenly everything.",
    "All right. An ear is a machine for measuring very small pushes of air. A sound moves the eardrum by less than "
    "the width of a molecule when it is faint, and three tiny bones pass that motion on to a window in a shell that "
    "is filled with water. Inside the shell lies a ribbon, stiff at one end and loose at the other, so that every "
    "pitch shakes a place of its own: the whistle of a kettle near the entrance, the rumble of a truck far inside. "
    "Hairs along the ribbon bend with it and tell the nerve where it moved. Stranger still, some of those hairs push "
    "back. They pump the ribbon in time with the sound, so that a whisper grows before it is heard. An ear in a very "
    "quiet room can even be recorded humming to itself.",
    "Very well. A lock lifts a ship by doing almost nothing. There is a chamber between two gates, with the low water "
    "on one side and the high water on the other. The ship sails in at the bottom, the gate shuts behind it, and "
    "somebody opens a valve. Water runs in from above because that is what water does, and the ship rises with it, "
    "however heavy it may be, without a single engine. When the levels are equal the upper gate swings open as easily "
    "as a garden door. Until then nobody could move it, for the gates meet in a blunt arrow that points upstream, and "
    "the river itself presses them together. A keeper once told me that the whole craft lies in waiting: those who "
    "hurry spill their coffee, those who wait arrive upstairs.",
    "Of course I can. Bread is mostly a way of keeping bubbles. When flour gets wet, two of its proteins join hands "
    "and make a net, and the more you fold and pull the dough, the finer that net becomes. Yeast then eats the little "
    "sugar it finds and breathes out gas, which the net catches in thousands of small rooms. A baker can hear when a "
    "loaf is done: knock on the bottom, and a dull thud means that the rooms are still full of steam, while a hollow "
    "sound means that they have dried. The crust is another story. It browns only when the surface is dry and very "
    "hot, and so the best ovens are wet at first, which lets the loaf grow, and dry at the end, which lets it "
    "crackle. Stand near the shelf when the morning's loaves come out, and you will hear them sing as they cool.",
)
